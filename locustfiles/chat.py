"""Chat users. docs/locust.md has the command and its options."""

from locust import task

import harness.drive.plugin  # noqa: F401 - options, records, the web UI's table
from harness.drive.users import ChatUser


class Chat(ChatUser):
    """Asks, reads the streamed answer to its end, asks again."""

    @task
    def ask(self) -> None:
        """Send what the workload plans next."""
        self.send()
