"""Server and GPU windows, the TTFT split, audits, and the rules of the bottleneck."""
