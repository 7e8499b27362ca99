"""Layer 2, pure and seeded: what to send and when."""
