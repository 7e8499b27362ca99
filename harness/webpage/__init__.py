"""Layer 5: the live page, and what Locust's web UI gets from us: tables, login, origin."""
