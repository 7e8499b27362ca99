"""Layer 1, pure and seeded: what to send and when."""
