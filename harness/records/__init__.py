"""Layer 2: results are files. Names, record codec, crash-safe writer, tolerant reader."""
