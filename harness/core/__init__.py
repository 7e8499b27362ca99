"""Layer 2, pure, for every folder: kinds of run, loads, states, typed JSON, value parsers."""
