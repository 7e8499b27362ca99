"""Users that complete prompts. docs/locust.md describes the command and its options."""

from locust import task

import harness.drive.plugin  # noqa: F401 - options, records, the web UI's table
from harness.drive.users import CompletionsUser


class Completions(CompletionsUser):
    """Sends a completion, reads the stream to its end, sends the next."""

    @task
    def complete(self) -> None:
        """Send the next request that the workload plans."""
        self.send()
