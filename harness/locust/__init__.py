"""What a locustfile of your own imports: users that stream, with a run folder for each test.

    from locust import task
    from harness.locust import ChatUser

    class Chat(ChatUser):
        @task
        def ask(self):
            self.send(name="ask")

docs/locust.md describes them.
"""

# Registers the study: options, run folder, results, our page.
import harness.locust.plain  # noqa: F401 - see above
from harness.senders.users import ChatUser, CompletionsUser, StreamingUser, WorkloadUser

__all__ = ["ChatUser", "CompletionsUser", "StreamingUser", "WorkloadUser"]
