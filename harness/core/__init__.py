"""Layer 2, pure, for every folder: kinds of run, states, typed JSON, timeouts, value parsers."""
