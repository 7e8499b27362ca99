"""Layer 6: whole experiments made of runs."""
