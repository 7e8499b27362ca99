"""Layer 3: what a target is, how it is asked, and what runs it."""
