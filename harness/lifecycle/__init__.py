"""A vLLM from its start to its end: starting it, its log, what a start and memory cost."""
