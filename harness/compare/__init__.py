"""Layer 7: two runs or settings side by side: what differs, and whether it is shown."""
