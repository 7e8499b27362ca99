"""Layer 6: whole experiments: options, checks before the load, levels, results."""
