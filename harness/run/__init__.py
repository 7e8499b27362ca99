"""Layer 8: whole experiments: options, checks before the load, levels, results."""
