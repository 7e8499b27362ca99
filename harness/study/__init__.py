"""Layer 4: whole experiments made of runs."""
