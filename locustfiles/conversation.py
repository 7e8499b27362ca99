"""Users with sessions: turn after turn, with pauses. docs/locust.md describes the command."""

from locust import task

import harness.study.plain  # noqa: F401 - options, run folder, results, our page
from harness.drive.users import ChatUser


class Conversation(ChatUser):
    """Sends a turn with the history before it, reads the answer, thinks, sends the next."""

    workload = "conversation"  # --workload agent has tools and shorter pauses

    @task
    def say(self) -> None:
        """Send the next turn that the workload plans; Locust waits for its think time."""
        self.send()
