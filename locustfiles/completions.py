"""Users that complete prompts. docs/locust.md describes the command and its options."""

from locust import task

from harness.locust import CompletionsUser


class Completions(CompletionsUser):
    """Sends a completion, reads the stream to its end, sends the next."""

    @task
    def complete(self) -> None:
        """Send the next request that the workload plans."""
        self.send()
