"""A worker as on another host: it does not see the master's run folder, and may have another time.

AHEAD_MS in the environment: so much its clock is ahead of everybody else's, stamps included.
"""

import os

from locust import task

import harness.locust.plain  # noqa: F401 - options, run folder, results, our page
from harness.reader.clock import CLOCK
from harness.records import names
from harness.senders.users import ChatUser
from harness.units import MS

names.RUN = "on another host.json"  # type: ignore[misc]
CLOCK.shift(round(float(os.environ.get("AHEAD_MS", "0")) * MS))


class Chat(ChatUser):
    """Those of locustfiles/chat.py."""

    @task
    def ask(self) -> None:
        """Send the next request."""
        self.send()
