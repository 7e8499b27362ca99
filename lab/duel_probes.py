"""Levels of a simulated engine as a tool sees them that holds one at a time: for the duel.

In: a configuration, users, a warm-up and a length. Out: the share of observations within the SLO's
limit, how far its quantile is from the limit in ms, and what the level cost, in seconds of load and
in requests. Each level is a run of its own on an empty engine, from the same draws for each method,
so a run is computed once and every method takes its window of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.units import MS, SECOND
from lab.closed_loop import ClosedLoop

if TYPE_CHECKING:
    from lab.engine_configurations import Configuration

SEEDS_FROM: Final = 5_000_000  # other draws than those of our search and of the true knees
MOST_USERS: Final = 1100  # of any method
MOST_TRIALS: Final = 64
DRAIN_S: Final = 5.0  # computed at once while requests are followed to their ends


@dataclass(frozen=True, slots=True)
class Length:
    """What is discarded, then what is measured: until so many seconds *and* requests."""

    warm_s: float
    seconds: float
    requests: int
    drained: bool  # the requests are followed to their ends; else those not answered are left out


@dataclass(frozen=True, slots=True)
class Seen:
    """What one level showed."""

    users: int
    requests: int  # in the measured window
    within: float  # share of the observations
    margin_ms: float  # the SLO's quantile minus its limit
    limit_ms: float
    seconds: float  # of load, with the warm-up
    sent: int  # requests, with the warm-up


class Run:
    """One level, from an empty engine on; computed only as far as somebody has asked for."""

    def __init__(self, case: Configuration, users: int, seed: int) -> None:
        (self.slo,) = case.slos
        self._gaps = self.slo.metric == "itl"
        self.users = users
        self._loop = ClosedLoop(case.engine, case.traffic, seed)
        self._loop.set_users(users)
        self._until_s = -1.0

    def see(self, length: Length) -> Seen:
        """Take a window of it."""
        begin = length.warm_s
        end = begin + length.seconds
        self._reach(end + (DRAIN_S if length.drained else 0))
        if length.requests:
            while (sent := self._sent_s[self._sent_s >= begin]).size < length.requests:
                share = length.requests / max(sent.size, 1)
                self._reach(begin + max(self._until_s - begin, 1) * min(1.05 * share, 4) + DRAIN_S)
            end = max(end, float(sent[length.requests - 1]))
        while True:
            chosen = (self._sent_s >= begin) & (self._sent_s <= end)
            last = float(self._done_s[chosen].max(initial=0.0))
            if not length.drained or last < np.inf:
                break
            self._reach(self._until_s + DRAIN_S)
        if not length.drained:
            chosen &= self._done_s <= end
            last = end
        if self._gaps:
            values = self._gap_ms[(self._gap_s >= begin) & (self._gap_s <= end)]
        else:
            values = self._ttft_ms[chosen]
        limit_ms = self.slo.limit_ns / MS
        return Seen(
            self.users,
            int(chosen.sum()),
            float((values <= limit_ms).mean()) if values.size else 0.0,
            float(np.quantile(values, self.slo.q)) - limit_ms if values.size else np.inf,
            limit_ms,
            max(last, end),
            int((self._sent_s <= end).sum()),
        )

    def _reach(self, until_s: float) -> None:
        """Advance the engine, and keep what clients saw until then in the order of sending."""
        if until_s <= self._until_s:
            return
        self._until_s = until_s
        self._loop.advance(int(until_s * SECOND))
        table = self._loop.table(0, int(until_s * SECOND))
        order = np.argsort(table.sent_ns, kind="stable")
        self._sent_s = table.sent_ns[order] / SECOND
        self._done_s = np.where(table.is_open, np.inf, table.done_ns / SECOND)[order]
        if self._gaps:
            # A gap follows every event but a request's last one.
            follows = np.ones(len(table.at_ns), bool)
            follows[table.offsets[:-1][table.counts > 0]] = False
            at = np.flatnonzero(follows)
            self._gap_s = (table.at_ns[at] / SECOND).astype(np.float32)
            self._gap_ms = ((table.at_ns[at] - table.at_ns[at - 1]) / MS).astype(np.float32)
        else:
            ttft = np.full(len(table), np.inf)
            some = table.counts > 0
            ttft[some] = (table.at_ns[table.offsets[:-1][some]] - table.sent_ns[some]) / MS
            self._ttft_ms = ttft[order]


class Server:
    """An engine on which levels are held."""

    def __init__(self, case: Configuration, seed: int) -> None:
        self._case, self._seed = case, seed
        self._runs: dict[tuple[int, int], Run] = {}

    def hold(self, users: int, trial: int, length: Length) -> Seen:
        """Hold a level for the `trial`-th time; trials have draws of their own."""
        run = self._runs.get((users, trial))
        if run is None:
            seed = SEEDS_FROM + (self._seed * MOST_USERS + users) * MOST_TRIALS + trial
            run = self._runs[users, trial] = Run(self._case, users, seed)
        return run.see(length)
