"""Layer 3: what a target is: probe, flags, scrapes of /metrics, its processes and GPUs; a vLLM's life."""
