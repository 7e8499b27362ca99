"""Layer 11: planning: does a model fit, how many replicas, when to scale."""
