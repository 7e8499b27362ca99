"""Layer 4: the embedded vLLM-like engine: a pure scheduler, and the server that plays it."""
