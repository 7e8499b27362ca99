"""Layer 10: whole experiments: options, checks before the load, the run, results."""
