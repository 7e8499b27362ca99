"""Layer 4, pure: latencies, SLOs and figures of what was recorded, and the typed result."""
