"""Requests at a rate, an open loop. docs/locust.md describes the command and its options."""

import harness.locust.locust_rate  # noqa: F401 - options, run folder, results, our page
from harness.locust import Pacer


class Requests(Pacer):
    """One for each load process, however many users: sends each request when it is due."""
