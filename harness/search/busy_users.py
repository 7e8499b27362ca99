"""When a level of users was there and had settled, from the records alone: instants in ns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from harness.core.arrays import Ints
    from harness.records.record_table import RecordTable

# The ramp is over when this share of the users has a request in flight; the level has settled when
# this many requests per user have ended since.
BUSY_SHARE: Final = 0.9
TURNOVERS: Final = 2


class BusyUsers:
    """How many users were in flight, or in their planned pause, just after each send."""

    def __init__(self, table: RecordTable) -> None:
        """`table` is not empty."""
        self.sent: Ints = np.sort(table.sent_ns)
        self.done: Ints = np.sort(table.done_ns)
        over = np.sort(table.done_ns + table.think_ns.clip(min=0))
        begun = np.arange(1, len(self.sent) + 1)
        # "right": a user whose request ends at the instant of a send may be the one who sends.
        self.users: Ints = begun - np.searchsorted(over, self.sent, "right")

    def ramped(self, users: int, since_ns: int, until_ns: int | None = None) -> int:
        """When nearly all of `users`, and no more of them, were busy; -1: never."""
        full = (self.users >= BUSY_SHARE * users) & (self.users <= users)
        full &= self.sent >= since_ns
        if until_ns is not None:
            full &= self.sent <= until_ns
        if not full.any():
            return -1
        return int(self.sent[np.argmax(full)])

    def settled(self, ramped_ns: int, users: int) -> int | None:
        """When two requests per user have ended since; None: never."""
        since = self.done[self.done > ramped_ns]
        needed = TURNOVERS * users
        return int(since[needed - 1]) if len(since) >= needed else None
