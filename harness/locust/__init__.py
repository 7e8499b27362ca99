"""What a locustfile of your own imports: users that stream, with a run folder for each test.

    from locust import task
    from harness.locust import ChatUser

    class Chat(ChatUser):
        @task
        def ask(self):
            self.send(name="ask")

docs/locust.md describes them.

Layer 11: Locust's own command with our options, run folders and page.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.senders.users import (
        ChatUser,
        CompletionsUser,
        Pacer,
        StreamingUser,
        WorkloadUser,
    )

__all__ = ["ChatUser", "CompletionsUser", "Pacer", "StreamingUser", "WorkloadUser"]


def __getattr__(name: str) -> Any:
    """Import a user class when a locustfile asks for it.

    Only then are our options, run folders and page added to Locust: other commands import modules
    of this package, too.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not import_module("harness.locust.plugin").STUDY:  # the file has not said another, a search
        import_module("harness.locust.plain")
    return getattr(import_module("harness.senders.users"), name)
