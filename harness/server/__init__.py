"""Layer 6: what a target is: probe, flags, scrapes of /metrics, processes, GPUs."""
