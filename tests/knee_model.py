"""A server in one formula, for tests of comparisons: TTFT grows with load, and comes in waves.

At `knee` users 5% of the TTFTs are over 500 ms. Requests that are sent within the same lifetime
share a factor, so that neighbors resemble each other, and each has a factor of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import hypot
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from harness.compare.compare_folders import level_figures
from harness.core.load import Users
from harness.metrics.evidence import Window
from harness.metrics.slo import Slo
from harness.records.record_table import (
    NUMBER_COLUMNS,
    OK,
    OUTCOME_CODE,
    RecordTable,
    concat_tables,
)
from harness.search.next_level import SearchPlan
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.compare.compare_folders import Sides

PLAN = SearchPlan((Slo.parse("ttft_p95=500ms"),))
OWN, SHARED = 0.35, 0.15  # standard deviations of log(TTFT)
P95 = NormalDist().inv_cdf(0.95) * hypot(OWN, SHARED)
STEEP = 3  # TTFT grows with this power of the load
EVENTS = 6


@dataclass(frozen=True)
class Model:
    """What is served."""

    knee: float
    ttft: float = 1.0  # so many times as long
    itl: float = 1.0
    fail: float = 0.0  # this share fails

    def hold(self, rng: np.random.Generator, users: int, begin_ns: int, count: int) -> RecordTable:
        """About `count` requests at one level."""
        load = users / self.knee
        itl_ns = 10 * MS * (1 + load) * self.itl
        typical_ns = 500 * MS * load**STEEP * np.exp(-P95) * self.ttft + 5 * MS
        life_ns = typical_ns + (EVENTS - 1) * itl_ns
        length = count * life_ns / users
        sent = np.sort(rng.uniform(0, length, count)).astype(np.int64)
        wave = (sent // life_ns).astype(np.int64)
        shared = rng.normal(0, SHARED, count)[wave]
        ttft = typical_ns * np.exp(shared + rng.normal(0, OWN, count))
        gaps = itl_ns * np.exp(shared / 3)[:, None] * rng.uniform(0.9, 1.1, (count, EVENTS))
        gaps[:, 0] = ttft
        at = (begin_ns + sent[:, None] + np.cumsum(gaps, axis=1)).astype(np.int64)
        bad = rng.random(count) < self.fail
        columns = dict.fromkeys(NUMBER_COLUMNS, np.zeros(count, np.int64))
        columns |= {
            "scheduled_ns": np.full(count, -1),
            "sent_ns": begin_ns + sent,
            "done_ns": at[:, -1],
            "planned_tokens": np.full(count, EVENTS),
            "outcome": np.where(bad, OUTCOME_CODE["status"], OK),
            "name": np.full(count, -1),
        }
        return RecordTable(
            **columns,
            offsets=np.arange(count + 1) * EVENTS,
            at_ns=at.ravel(),
            not_before_ns=at.ravel(),
            tokens=np.ones(at.size, np.int64),
        )

    def searched(self, seed: int, requests: int = 700) -> Sides:
        """As a search goes: climb, then around the knee, ends twice."""
        climb = [
            (4**i, requests // 8) for i in range(1, int(np.log(4 * self.knee) / np.log(4)) + 2)
        ]
        near = [(round(self.knee * share), requests) for share in (0.9, 1.1, 0.96, 1.04, 1)]
        return self.held(seed, *climb, *near, near[-1])

    def held(self, seed: int, *levels: tuple[int, int], searched: bool = True) -> Sides:
        """(users, requests) one after another."""
        rng, now, tables, windows = np.random.default_rng([11, seed]), SECOND, [], []
        for index, (users, count) in enumerate(levels):
            table = self.hold(rng, users, now, count)
            end = int(table.sent_ns.max())
            windows.append(Window(index, Users(users), "up", now, now, now, end, end))
            tables.append(table)
            now = int(table.done_ns.max()) + SECOND
        assert all(a.end_ns < b.start_ns for a, b in pairwise(windows))
        return level_figures(concat_tables(tables), windows, PLAN, searched=searched)
