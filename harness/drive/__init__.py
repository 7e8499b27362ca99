"""Layer 5: Locust. The only folder that imports locust or gevent."""
