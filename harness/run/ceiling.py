"""How many streams this machine times right: the whole client against an engine that logs.

An engine that sends by the clock (first token after 100 ms, then one each 20 ms) is read by one
load process as in any run: Locust users, reader, decoder, records to the main process. Level after
level, what was read is compared with what was sent. The ceiling is the last level whose TTFT and
ITL p50, p95 and p99 are right within 1%, or 0.5 and 0.1 ms. About 20 seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.request import urlopen

import numpy as np

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.engine.server import ServingOptions
from harness.load.arrivals import LoadTarget
from harness.load.lengths import Lengths
from harness.load.workloads import WORKLOADS
from harness.metrics.latency_figures import in_window
from harness.metrics.metrics import Observations, itl, ttft
from harness.metrics.statistics import quantile
from harness.records.record_table import RecordTable
from harness.records.request_record import Outcome, RequestRecord
from harness.senders.children import child_processes
from harness.senders.drive_options import DriveOptions
from harness.senders.prepare import prepare
from harness.senders.session import Session
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.core.arrays import Floats
    from harness.records.samples import ServerSample


LEVELS: Final = (64, 128, 256, 384, 512, 768)
FIRST_NS: Final = 100 * MS
GAP_NS: Final = 20 * MS
TOKENS: Final = 32
MEASURED_NS: Final = SECOND
QUANTILES: Final = (0.5, 0.95, 0.99)
SHARE: Final = 0.01
FLOOR_NS: Final = {"ttft": 0.5 * MS, "itl": 0.1 * MS}
PACE: Final = 0.9  # of the tokens that the level should bring: fewer, and the engine is the limit


@dataclass(frozen=True, slots=True)
class Rung:
    """One level: quantiles (p50, p95, p99) in ns as read and as sent, and whether they agree."""

    streams: int
    tokens_per_s: float
    cpu_us_per_token: float  # of all the client's processes
    read: dict[str, Floats]  # "ttft", "itl"
    sent: dict[str, Floats]

    @property
    def paced(self) -> bool:
        """Whether the engine sent what it should: else the level says nothing of the client."""
        life_ns = FIRST_NS + (TOKENS - 1) * GAP_NS
        return self.tokens_per_s >= PACE * self.streams * TOKENS / life_ns * SECOND

    @property
    def timed(self) -> bool:
        """Whether every quantile is right within 1% or the floor."""
        return all(
            bool(np.all(np.abs(self.read[k] - self.sent[k]) <= np.maximum(SHARE * self.sent[k], f)))
            for k, f in FLOOR_NS.items()
        )


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What one load process times right. `more`: the engine gave out, not the client."""

    rungs: tuple[Rung, ...]

    @property
    def best(self) -> Rung | None:
        """The last level before the first that is wrong; None: not even the lowest is right."""
        good = [r for r in self.rungs if r.paced]
        wrong = next((i for i, r in enumerate(good) if not r.timed), len(good))
        return good[wrong - 1] if wrong else None

    @property
    def more(self) -> bool:
        """Whether the client may well hold more than could be tried."""
        return all(r.timed for r in self.rungs if r.paced)


class _Window(NamedTuple):
    streams: int
    start_ns: int
    end_ns: int
    cpu_s: float


class _Staircase:
    """A controller that holds each level until a window has passed with all its users there."""

    def __init__(self, levels: Sequence[int]) -> None:
        self.left = list(levels)
        self.windows: list[_Window] = []
        self.cpu_s: Callable[[], float] = lambda: 0.0  # of the client so far
        self._since, self._cpu_s = -1, 0.0

    def tick(
        self,
        now_ns: int,
        running_users: int,
        server: ServerSample | None,  # noqa: ARG002 - Controller's signature
        known_ns: int,  # noqa: ARG002 - as above
    ) -> LoadTarget:
        users = self.left[0]
        if self._since >= 0 and now_ns - self._since >= MEASURED_NS:
            self.windows.append(_Window(users, self._since, now_ns, self.cpu_s() - self._cpu_s))
            del self.left[0]
            self._since = -1
        elif self._since < 0 and running_users == users:
            self._since, self._cpu_s = now_ns, self.cpu_s()
        return (
            LoadTarget(self.left[0], float(self.left[0]))
            if self.left
            else LoadTarget(0, 1.0, done=True)
        )


class _Kept:
    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    def put(self, records: list[RequestRecord]) -> None:
        self.records += [r for r in records if r.outcome is Outcome.ok]

    def close(self) -> None:
        """Nothing to flush."""


def measure_ceiling(levels: Sequence[int] = LEVELS) -> Ceiling:
    """Run the levels. Raises ServerUnreachable when the engine does not start."""
    config = EngineConfig(max_num_seqs=4096, jitter=0.0)
    shape = replace(WORKLOADS["chat"], prompt=Lengths("fixed", 32), output=Lengths("fixed", TOKENS))
    stairs, kept = _Staircase(levels), _Kept()
    with start_engine(config, serving=ServingOptions(first_ns=FIRST_NS, pace_ns=GAP_NS)) as engine:
        options = prepare(DriveOptions(engine.url, config.model, shape))
        with child_processes(options) as load:
            session = Session(load, options, stairs, [kept], drain_ns=2 * SECOND)
            stairs.cpu_s = lambda: sum(s.cpu_s for s in session.client_samples())
            session.run()
        with urlopen(f"{engine.url}/oracle") as answer:  # noqa: S310 - our own engine's, by http
            sent = _Sent(json.load(answer)["requests"])
    table = RecordTable.from_records(kept.records)
    seen = {"ttft": ttft(table), "itl": itl(table)}
    return Ceiling(tuple(_rung(window, table, seen, sent) for window in stairs.windows))


class _Sent:
    """The engine's log: TTFTs by arrival and gaps by their end, on its own clock."""

    def __init__(self, requests: Sequence[dict[str, Any]]) -> None:
        whole = [r for r in requests if len(r["before_ns"]) > 1]
        self.at = np.array([r["arrived_ns"] for r in whole], np.int64)
        self.ttft = np.array([r["before_ns"][0] - r["arrived_ns"] for r in whole], np.float64)
        self.ends = np.concatenate([np.array(r["before_ns"][1:]) for r in whole])
        self.gaps = np.concatenate([np.diff(r["before_ns"]) for r in whole]).astype(np.float64)


def _rung(window: _Window, table: RecordTable, seen: dict[str, Observations], sent: _Sent) -> Rung:
    streams, start, end, cpu_s = window
    read = {key: in_window(seen[key], table, key, start, end).ns for key in seen}
    there = {
        "ttft": sent.ttft[(sent.at >= start) & (sent.at <= end)],
        "itl": sent.gaps[(sent.ends >= start) & (sent.ends <= end)],
    }
    arrived = int(((table.at_ns >= start) & (table.at_ns <= end)).sum())
    return Rung(
        streams,
        arrived / (end - start) * SECOND,
        cpu_s / max(arrived, 1) * 1e6,
        {k: _quantiles(v) for k, v in read.items()},
        {k: _quantiles(v) for k, v in there.items()},
    )


def _quantiles(values: Floats) -> Floats:
    ordered = np.sort(values)
    return np.array([quantile(ordered, q) for q in QUANTILES])


__all__ = ["Ceiling", "Rung", "measure_ceiling"]
