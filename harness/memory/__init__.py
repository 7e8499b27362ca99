"""Layer 1, pure: what a model takes of GPUs' memory, as vLLM 0.32 counts it."""
