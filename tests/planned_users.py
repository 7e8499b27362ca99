"""Users with think time or sessions against the scheduler, as the load plans them.

Prompts have block hashes, so that a turn finds its history in the prefix cache while it is there.
"""

from __future__ import annotations

import heapq
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.load.conversations import Talk
from harness.units import MS
from lab.closed_loop import ClosedLoop, Traffic

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig
    from harness.engine.scheduler import Sequence
    from harness.load.plan import RequestSpec
    from harness.load.workloads import Workload
    from harness.records.record_table import RecordTable

COLUMNS: Final = ("user", "session", "turn", "think_ns", "new_tokens")


class PlannedUsers(ClosedLoop):
    """A user thinks after each answer, then sends what is planned next."""

    def __init__(self, config: EngineConfig, workload: Workload, seed: int) -> None:
        super().__init__(config, Traffic(), seed)
        self.workload, self.seed = workload, seed
        self._talks: list[Talk] = []  # by user
        self._asked: dict[int, tuple[int, RequestSpec]] = {}  # request -> its user, what it asks
        self._roots: dict[int, int] = {}  # user -> the request whose prompt the next one extends
        self._columns = array("q")  # COLUMNS of each request, in order
        self._ended: tuple[int, int] | None = None  # whose request did, and its pause after it

    def set_users(self, users: int) -> None:
        """As Locust has it: who thinks leaves at once, others after their answer."""
        thinking, leave = sum(sent > self.now_ns for sent, _ in self._due), self.users - users
        if leave > 0:
            others = max(self.running_users - thinking, 0)
            gone = int(self._stagger.hypergeometric(thinking, others, leave))
            self._due = sorted(self._due)[: len(self._due) - gone]
            heapq.heapify(self._due)
            self.users -= gone
        super().set_users(users)

    def _send(self, at_ns: int) -> None:
        """The next request of the user whose answer came, or the first of a new one."""
        if self._ended is None:
            think = self.workload.think_ms
            pause_ns = int(self._stagger.random() * think.mean * MS) if think else 0
            user = len(self._talks)
            self._talks.append(Talk(self.workload, self.seed, user))
        else:
            user, pause_ns = self._ended
        spec = self._talks[user].next_spec(at_ns)
        self._columns.extend((user, spec.session, spec.turn, spec.think_ns, spec.new_tokens))
        self._asked[self._count] = user, spec
        super()._send(at_ns + max(pause_ns, 0))

    def _add(self, at_ns: int, sent_ns: int, number: int) -> None:
        user, spec = self._asked[number]
        hashes: list[int] = []
        if spec.session >= 0:
            root = self._roots[user] = self._roots[user] if spec.new_tokens >= 0 else number
            size = self.engine.config.block_size
            shared, blocks = self.workload.system_tokens // size, range(spec.prompt_tokens // size)
            hashes = [hash((root if block >= shared else -1, block)) for block in blocks]
        added = self.engine.add(number, spec.prompt_tokens, spec.output_tokens, at_ns, hashes)
        self._records.add(sent_ns, added)

    def _end(self, sequence: Sequence, at_ns: int) -> None:
        user, spec = self._asked.pop(sequence.request_id)
        self._talks[user].ended("", ok=True)
        self._ended = user, spec.think_ns
        super()._end(sequence, at_ns)
        self._ended = None

    def table(self, from_ns: int, horizon_ns: int) -> RecordTable:
        """With the plan's columns."""
        table = super().table(from_ns, horizon_ns)
        planned = np.array(self._columns, np.int64).reshape(-1, len(COLUMNS))[table.number]
        return replace(table, **dict(zip(COLUMNS, planned.T, strict=True)))
