"""Planning: does a model fit, how many replicas, when to scale."""
