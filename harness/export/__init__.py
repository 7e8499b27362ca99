"""Layer 4: exports for Prometheus, Grafana and Kubernetes: metrics, rules, thresholds."""
