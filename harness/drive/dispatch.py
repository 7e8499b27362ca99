"""How users are spread over the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from locust.dispatch import UsersDispatcher

if TYPE_CHECKING:
    from collections.abc import Generator


class Dispatcher(UsersDispatcher):
    """Locust's own, which after a mere rebalance stays "in progress" for good.

    A master does not dispatch to a worker that connects, or is heard again, meanwhile: once one
    had joined or recovered under load, the next one never got any users.
    """

    def _dispatcher(self) -> Generator[dict[str, dict[str, int]], None, None]:
        yield from super()._dispatcher()
        # Not in a `finally`: a generator that a newer dispatch has replaced is closed while that
        # one is in progress.
        self._dispatch_in_progress = False
