"""Users that chat. docs/locust.md describes the command and its options."""

from locust import task

from harness.locust import ChatUser


class Chat(ChatUser):
    """Sends a chat completion, reads the stream to its end, sends the next."""

    @task
    def ask(self) -> None:
        """Send the next request that the workload plans."""
        self.send()
