"""Layer 5: Locust. One runner serves the `vllm-harness` and `locust` commands alike."""
