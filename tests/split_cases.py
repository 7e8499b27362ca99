"""Simulated runs whose every request is known from the inside: what a split of TTFT must bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.core.typed_json import to_json
from harness.diagnosis.ttft_split import PARTS, ttft_split
from harness.units import MS, SECOND
from lab.closed_loop import ClosedLoop
from lab.engine_configurations import configuration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.records.record_table import RecordTable
    from harness.records.samples import ServerSample

SEEDS = 240
NEAR = 1e-5  # ms: the server's sums are floats
FAR_MS = (0, 1, 40, 700)  # one-way delays of the network, at most


@dataclass(frozen=True)
class Known:
    """One run: from an empty server, two levels of load, to an empty server."""

    table: RecordTable  # as the client saw it, over a network with delays
    samples: list[ServerSample]
    parts_ms: dict[str, np.ndarray]  # each request's own, rows as in the table

    def true_ms(self, from_ns: int, to_ns: int) -> dict[str, float]:
        """Means over the requests sent between two instants."""
        rows = (self.table.sent_ns > from_ns) & (self.table.sent_ns <= to_ns)
        return {key: float(values[rows].mean()) for key, values in self.parts_ms.items()}


def known(seed: int) -> Known:
    """Users and lengths vary with the seed, so does how far the server is."""
    rng = np.random.default_rng([77, seed])
    case = configuration(seed)
    loop = ClosedLoop(case.engine, case.traffic, seed, observe=True)
    loop.advance(2 * SECOND)  # nobody yet: a request that is seen to leave early leaves after 0
    samples = [replace(loop.sample(), at_ns=SECOND)]
    for users in rng.integers(1, 90, 2):
        loop.set_users(int(users))
        for _ in range(int(rng.integers(6, 16))):
            loop.advance(loop.now_ns + SECOND)
            samples.append(loop.sample())
    loop.set_users(0)
    while loop.running_users:
        loop.advance(loop.now_ns + SECOND)
    loop.advance(loop.now_ns + 3 * SECOND)  # the last bytes are still on their way
    samples.append(loop.sample())
    return seen_from_afar(loop, samples, rng, FAR_MS[seed % len(FAR_MS)] * MS)


def seen_from_afar(
    loop: ClosedLoop, samples: list[ServerSample], rng: np.random.Generator, most_ns: int
) -> Known:
    """The loop's records with a delay on each way of each request."""
    table = loop.table(0, loop.now_ns)
    mine = loop.sequences
    assert [s.request_id for s in mine] == table.number.tolist()
    there, back = (rng.integers(0, most_ns + 1, len(table)) for _ in range(2))
    first = np.array([s.first_token_ns for s in mine])
    scheduled = np.array([s.scheduled_ns for s in mine])
    arrived = np.array([s.arrived_ns for s in mine])
    parts = {
        "ttft": first - table.sent_ns,
        "queue": scheduled - arrived,
        "prefill": first - scheduled,
        "rest": arrived - table.sent_ns,  # the front end's
        "client": first - table.sent_ns + there + back,
        "residual": there + back,
    }
    late = np.repeat(back, table.counts)
    far = replace(
        table,
        sent_ns=table.sent_ns - there,
        done_ns=table.done_ns + back,
        at_ns=table.at_ns + late,
        not_before_ns=table.not_before_ns + late,
    )
    return Known(far, samples, {key: values / MS for key, values in parts.items()})


def checked(seed: int) -> dict[str, Any]:
    """Whether true means lie in their bounds.

    `windows`: cut out of the run in full flow, with a split. `outside`: the parts whose true mean
    is not in its bound, or whose parts do not add up. `inexact`: the same of the whole run, which
    begins and ends empty, so that each mean is the true one.
    """
    run, rng = known(seed), np.random.default_rng(seed)
    windows, outside = 0, []
    for _ in range(4):
        a, b = np.sort(rng.choice(np.arange(1, len(run.samples) - 1), 2, replace=False))
        window = run.samples[a].at_ns, run.samples[b].at_ns
        got = to_json(ttft_split(run.table, run.samples, window, window))
        if got["n"]:
            windows += 1
            outside += not_within(run, window, got)
    return {"windows": windows, "outside": outside, "inexact": inexact(run)}


def near(a: float, b: float, most: float = NEAR) -> bool:
    """Whether two means in ms are the same."""
    return abs(a - b) <= most


def adds_up(got: dict[str, Any]) -> bool:
    """Whether the parts are the whole."""
    return near(sum(got[f"{part}_ms"] for part in PARTS), got["client_ms"], 1e-6 * got["client_ms"])


def not_within(run: Known, window: tuple[int, int], got: dict[str, Any]) -> list[str]:
    """The parts whose true mean, or whose figure, is not within the bound."""
    found = [] if adds_up(got) else ["sum"]
    for part, want in run.true_ms(*window).items():
        low, high = got[f"{part}_ms_bound"]
        if not low - NEAR <= want <= high + NEAR or not low <= got[f"{part}_ms"] <= high:
            found.append(part)
    return found


def inexact(run: Known) -> list[str]:
    """What is not exact of the whole run."""
    window = run.samples[2].at_ns, run.samples[-4].at_ns
    got = to_json(ttft_split(run.table, run.samples, window))
    span = run.samples[0].at_ns, run.samples[-1].at_ns
    facts = {
        "exact": got["exact"],
        "n": got["n"] == len(run.table),
        "span": (got["from_ns"], got["to_ns"]) == span,
        "sum": near(sum(got[f"{part}_ms"] for part in PARTS), got["client_ms"]),
    }
    for part, want in run.true_ms(*span).items():
        mean = got[f"{part}_ms"]
        facts[part] = near(mean, want) and got[f"{part}_ms_bound"] == [mean, mean]
    return [what for what, well in facts.items() if not well]


def cases() -> Iterator[tuple[int]]:
    """Each seed."""
    return ((seed,) for seed in range(SEEDS))
