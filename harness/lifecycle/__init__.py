"""Layer 8: a vLLM from its start to its end: what a start, memory and idle users cost; vary."""
