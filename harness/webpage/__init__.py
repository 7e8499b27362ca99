"""Layer 8: the live page, and what Locust's web UI gets from us: login, origin."""
