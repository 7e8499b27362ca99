"""Layer 2, sans-I/O: bytes to meaning and back."""
