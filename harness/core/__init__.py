"""Layer 2, pure: what every folder may need: loads, states, typed JSON, timeouts, parsers of values."""
