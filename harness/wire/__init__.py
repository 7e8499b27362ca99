"""Layer 4, sans-I/O: bytes to meaning and back."""
