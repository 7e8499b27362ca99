"""Layer 7: what leaves for Prometheus: metric pages, series, live state."""
