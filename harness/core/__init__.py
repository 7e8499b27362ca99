"""Layer 2, pure: what every folder may need: states, typed JSON, timeouts, parsers of values."""
