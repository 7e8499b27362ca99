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

from harness.core.arrays import between
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
        least_per_s = PACE * self.streams * TOKENS / life_ns * SECOND
        return self.tokens_per_s >= least_per_s

    @property
    def timed(self) -> bool:
        """Whether every quantile is right within 1% or the floor."""
        for key, floor_ns in FLOOR_NS.items():
            error_ns = np.abs(self.read[key] - self.sent[key])
            allowed_ns = np.maximum(SHARE * self.sent[key], floor_ns)
            if not np.all(error_ns <= allowed_ns):
                return False
        return True


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What one load process times right. `more`: the engine gave out, not the client."""

    rungs: tuple[Rung, ...]

    @property
    def best(self) -> Rung | None:
        """The last level before the first that is wrong; None: not even the lowest is right."""
        best = None
        for rung in self.rungs:
            if not rung.paced:
                continue
            if not rung.timed:
                break
            best = rung
        return best

    @property
    def more(self) -> bool:
        """Whether the client may well hold more than could be tried."""
        return all(rung.timed for rung in self.rungs if rung.paced)


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
        self._since_ns = -1  # of the window; -1: not all users are there yet
        self._cpu_s = 0.0  # of the client by then

    def tick(
        self,
        now_ns: int,
        running_users: int,
        server: ServerSample | None,  # noqa: ARG002 - Controller's signature
        known_ns: int,  # noqa: ARG002 - as above
    ) -> LoadTarget:
        users = self.left[0]
        if self._since_ns >= 0 and now_ns - self._since_ns >= MEASURED_NS:
            cpu_s = self.cpu_s() - self._cpu_s
            self.windows.append(_Window(users, self._since_ns, now_ns, cpu_s))
            del self.left[0]
            self._since_ns = -1
        elif self._since_ns < 0 and running_users == users:
            self._since_ns = now_ns
            self._cpu_s = self.cpu_s()
        if not self.left:
            return LoadTarget(0, 1.0, done=True)
        return LoadTarget(self.left[0], float(self.left[0]))


class _Kept:
    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    def put(self, records: list[RequestRecord]) -> None:
        self.records += [record for record in records if record.outcome is Outcome.ok]

    def close(self) -> None:
        """Nothing to flush."""


def measure_ceiling(levels: Sequence[int] = LEVELS) -> Ceiling:
    """Run the levels. Raises ServerUnreachable when the engine does not start."""
    config = EngineConfig(max_num_seqs=4096, jitter=0.0)
    prompt = Lengths("fixed", 32)
    output = Lengths("fixed", TOKENS)
    shape = replace(WORKLOADS["chat"], prompt=prompt, output=output)
    serving = ServingOptions(first_ns=FIRST_NS, pace_ns=GAP_NS)
    stairs = _Staircase(levels)
    kept = _Kept()
    with start_engine(config, serving=serving) as engine:
        options = prepare(DriveOptions(engine.url, config.model, shape))
        with child_processes(options) as load:
            session = Session(load, options, stairs, [kept], drain_ns=2 * SECOND)
            stairs.cpu_s = lambda: sum(sample.cpu_s for sample in session.client_samples())
            session.run()
        with urlopen(f"{engine.url}/oracle") as answer:  # noqa: S310 - our own engine's, by http
            sent = _Sent(json.load(answer)["requests"])
    table = RecordTable.from_records(kept.records)
    observed = {"ttft": ttft(table), "itl": itl(table)}
    rungs = [_rung(window, table, observed, sent) for window in stairs.windows]
    return Ceiling(tuple(rungs))


class _Sent:
    """The engine's log: TTFTs by arrival and gaps by their end, on its own clock."""

    def __init__(self, requests: Sequence[dict[str, Any]]) -> None:
        arrived_ns = []
        ttft_ns = []
        gap_ends_ns = []
        gaps_ns = []
        for request in requests:
            token_ns = request["before_ns"]
            if len(token_ns) < 2:  # noqa: PLR2004 - it has no gap
                continue
            arrived_ns.append(request["arrived_ns"])
            ttft_ns.append(token_ns[0] - request["arrived_ns"])
            gap_ends_ns.append(np.array(token_ns[1:]))
            gaps_ns.append(np.diff(token_ns))
        self.arrived_ns = np.array(arrived_ns, np.int64)
        self.ttft_ns = np.array(ttft_ns, np.float64)
        self.gap_ends_ns = np.concatenate(gap_ends_ns)
        self.gaps_ns = np.concatenate(gaps_ns).astype(np.float64)


def _rung(
    window: _Window, table: RecordTable, observed: dict[str, Observations], sent: _Sent
) -> Rung:
    start_ns = window.start_ns
    end_ns = window.end_ns
    read_ns = {}
    for key, latency in observed.items():
        read_ns[key] = in_window(latency, table, key, start_ns, end_ns).ns
    has_arrived = between(sent.arrived_ns, start_ns, end_ns)
    has_ended = between(sent.gap_ends_ns, start_ns, end_ns)
    sent_ns = {
        "ttft": sent.ttft_ns[has_arrived],
        "itl": sent.gaps_ns[has_ended],
    }
    has_come = between(table.at_ns, start_ns, end_ns)
    n_tokens = int(has_come.sum())
    return Rung(
        streams=window.streams,
        tokens_per_s=n_tokens / (end_ns - start_ns) * SECOND,
        cpu_us_per_token=window.cpu_s / max(n_tokens, 1) * 1e6,
        read={key: _quantiles(ns) for key, ns in read_ns.items()},
        sent={key: _quantiles(ns) for key, ns in sent_ns.items()},
    )


def _quantiles(values: Floats) -> Floats:
    ordered = np.sort(values)
    return np.array([quantile(ordered, q) for q in QUANTILES])


__all__ = ["Ceiling", "Rung", "measure_ceiling"]
