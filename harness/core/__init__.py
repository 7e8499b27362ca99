"""Layer 2, pure: what every folder may need: kinds of run, states, typed JSON, timeouts, values."""
