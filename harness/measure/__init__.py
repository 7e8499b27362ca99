"""Layer 1, pure: numbers in, numbers out. Knows no socket, no clock, no Locust."""
