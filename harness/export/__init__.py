"""Layer 4: what leaves for Prometheus and Kubernetes: metric pages, rules, thresholds."""
