"""Layer 3: what a target is: probe, flags, scrapes of /metrics, processes, GPUs; a vLLM's life."""
