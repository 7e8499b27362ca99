"""Layer 3: Locust. The only folder that imports locust or gevent."""
