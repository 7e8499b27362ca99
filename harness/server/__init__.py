"""Layer 3: the life of a real vLLM."""
