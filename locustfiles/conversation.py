"""Users with sessions: turn after turn, with pauses. docs/locust.md describes the command."""

from locust import task

from harness.locust import ChatUser


class Conversation(ChatUser):
    """Sends a turn with the history before it, reads the answer, thinks, sends the next."""

    workload = "conversation"  # --workload agent has tools and shorter pauses

    @task
    def say(self) -> None:
        """Send the next turn that the workload plans; Locust waits for its think time."""
        self.send()
