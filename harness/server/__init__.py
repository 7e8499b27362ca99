"""Layer 2: the life of a real vLLM."""
