"""Layer 3: the target: how to reach it, what it is, and its CPU, GPU and metrics readings."""
