"""Layer 2, pure: what every folder may need: loads, states, typed JSON, parsers of values."""
