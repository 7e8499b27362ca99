"""Layer 7: Locust. One runner for `vllm-harness` and for the `locust` command."""
