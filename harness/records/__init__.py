"""Layer 3: the run folder: requests, samples, a crash-safe writer, a tolerant reader."""
