"""The search for the knee. docs/locust.md has the command and its options."""

from locust import task

import harness.study.hosted  # noqa: F401 - the search, its page, its results
from harness.drive.users import WorkloadUser


class Load(WorkloadUser):
    """Sends what the workload plans, reads the streamed answer to its end, sends the next."""

    @task
    def ask(self) -> None:
        """Send what the workload plans next."""
        self.send()
