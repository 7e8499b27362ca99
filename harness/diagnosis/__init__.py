"""Layer 5, pure: server and GPU windows, the TTFT split, audits, rules of the bottleneck."""
