"""Statistics, tests, the fit, and the next level to hold."""
