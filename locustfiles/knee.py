"""The search for the knee. docs/locust.md describes the command and its options."""

from locust import task

import harness.locust.locust_knee  # noqa: F401 - the search, its page, its results
from harness.locust import WorkloadUser


class Load(WorkloadUser):
    """Sends a request, reads the stream to its end, sends the next."""

    @task
    def ask(self) -> None:
        """Send the next request that the workload plans."""
        self.send()
