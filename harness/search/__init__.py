"""Layer 6: the search for the knee, live and replayed: the next level, its judge, the estimate."""
