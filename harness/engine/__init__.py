"""Layer 2: the embedded vLLM-like server. Its scheduler is pure; one file owns the sockets."""
