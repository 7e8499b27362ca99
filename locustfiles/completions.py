"""Completion users. docs/locust.md has the command and its options."""

from locust import task

import harness.drive.plugin  # noqa: F401 - options, records, the web UI's table
from harness.drive.users import CompletionsUser


class Completions(CompletionsUser):
    """Sends a prompt, reads the streamed text to its end, sends the next."""

    @task
    def complete(self) -> None:
        """Send what the workload plans next."""
        self.send()
