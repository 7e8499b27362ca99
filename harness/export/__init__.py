"""Layer 7: what leaves: metric pages, series and live state for Prometheus, the run folder."""
