"""PANELS: what Grafana shows, as plain data; grafana/generate.py turns it into dashboards."""
