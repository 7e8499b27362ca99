"""Layer 4: what leaves for Prometheus and Kubernetes: pages of metrics, rules, thresholds."""
