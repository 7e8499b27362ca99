"""Layer 1, pure: numbers in, numbers out, without sockets, clocks or Locust."""
