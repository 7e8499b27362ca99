"""Can the instrument be believed in this step? How wide its own uncertainty is, beside the limit.

Every observation lies in [lo, hi], equal where the kernel's stamp is exact. The quantile of all the
lows and that of all the highs enclose the true quantile. When the two are far apart, on the scale
on which the quantile is judged, the client was the bottleneck and the step must not be used.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import nan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.figures import Sample, sample_of, spans_of
from harness.measure.samples import within
from harness.measure.stats import quantile
from harness.measure.summary import Tokens
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.evidence import Window
    from harness.measure.figures import Figures
    from harness.measure.gaps import Gaps
    from harness.measure.recorded import Recorded
    from harness.measure.samples import ClientSample
    from harness.measure.slo import Slo
    from harness.measure.table import RecordTable

    Floats = NDArray[np.float64]

SHARE_LIMIT: Final = 0.05  # of the limit (or of the value above it): the bracket's own width
# without an SLO these are judged, and so much uncertainty is none: what accuracy is claimed to
WITHOUT_SLO: Final = {"ttft": 0.5 * MS, "itl": 0.1 * MS}
FEWEST: Final = 20  # observations: fewer cannot have a p95


@dataclass(frozen=True, slots=True)
class Instrument:
    """One quantile as the stamps give it, and between which bounds it must lie, in ns."""

    metric: str
    q: float
    value_ns: float
    lo_ns: float
    hi_ns: float
    scale_ns: float  # what the width is compared with

    @property
    def share(self) -> float:
        """The instrument's width over the scale; 0 where both bounds are infinite."""
        width = self.hi_ns - self.lo_ns if np.isfinite(self.lo_ns) else 0.0
        return float(width / max(self.scale_ns, 1.0))


def instruments(
    recorded: Recorded, window: Window, slos: Sequence[Slo], gaps: Gaps | None = None
) -> list[Instrument]:
    """The quantiles that the step is judged by: its SLOs', else p95 TTFT and p95 ITL.

    `gaps`: those of the window, where they were counted already, with the SLOs' quantiles.
    """
    table, span = recorded.table, (window.settled_ns, window.end_ns)
    wanted = [(s.metric, s.q, float(s.limit_ns)) for s in slos]
    wanted = wanted or [(key, 0.95, 0.0) for key in WITHOUT_SLO]
    if gaps is None and any(key == "itl" for key, _, _ in wanted):
        gaps = Tokens.of(recorded, span, [q for _, q, _ in wanted]).gaps
    found = []
    for key, q, limit_ns in wanted:
        if key == "itl":
            seen: Figures | None = gaps
        else:
            seen = _closed(sample_of(table, key, spans_of(table, [span])))
        if seen is not None and seen.n >= FEWEST:
            found.append(_bounds(seen, key, q, limit_ns))
    return found


def _closed(sample: Sample) -> Sample:
    """Without the width of what is open: a request is uncertain then for that, not by the clock."""
    seen = sample.seen
    closed = np.isfinite(seen.hi_ns) | ~np.isfinite(seen.ns)
    lo, hi = (np.where(closed, ends, seen.ns) for ends in (seen.lo_ns, seen.hi_ns))
    return Sample(replace(seen, lo_ns=lo, hi_ns=hi), sample.blocks)


def _bounds(seen: Figures, key: str, q: float, limit_ns: float) -> Instrument:
    value, (low, high) = seen.quantile(q), seen.instrument(q)
    scale = max(limit_ns, value if np.isfinite(value) else 0.0)
    if not limit_ns:
        scale = max(scale, WITHOUT_SLO[key] / SHARE_LIMIT)
    return Instrument(key, q, value, low, high, scale)


def instrument_sentence(
    recorded: Recorded, window: Window, slos: Sequence[Slo], gaps: Gaps | None = None
) -> str:
    """Why the step's figures must not be used, with the remedy; '' when they may."""
    found = instruments(recorded, window, slos, gaps)
    worst = max(found, key=lambda x: x.share, default=None)
    if worst is None or worst.share <= SHARE_LIMIT:
        return ""
    exact = recorded.table.not_before_ns == recorded.table.at_ns
    why = (
        "two arrivals shared a read, or were read late"
        if exact.any()
        else "no arrival has a kernel stamp here"
    )
    return (
        f"this client cannot tell p{worst.q * 100:g} {worst.metric.upper()} better than "
        f"{worst.lo_ns / MS:.4g} to {worst.hi_ns / MS:.4g} ms, {worst.share:.0%} of the scale it "
        f"is judged on: expected at most {SHARE_LIMIT:.0%} ({why}); try --processes 4, or fewer "
        "users per worker"
    )


def turnarounds(table: RecordTable, window: Window) -> Floats:
    """Ns between the end of a user's request and the start of its next one, of those in the window.

    A closed loop without think time sends at once: what passes is the client's own delay.
    """
    order = np.lexsort((table.sent_ns, table.user, table.worker))
    user, worker = table.user[order], table.worker[order]
    same = (user[1:] == user[:-1]) & (worker[1:] == worker[:-1])
    sent, done = table.sent_ns[order], table.done_ns[order]
    inside = (sent[1:] >= window.settled_ns) & (sent[1:] <= window.end_ns)
    gaps = (sent[1:] - done[:-1])[same & inside]
    return np.asarray(gaps.clip(min=0), np.float64)


@dataclass(frozen=True, slots=True)
class Turnaround:
    """The client's own delay between the end of a request and the start of its user's next one."""

    mean: float = nan  # mean, ms
    p99: float = nan  # p99, ms


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """What the load generator shows of itself in one window; null: not known."""

    instrument_share: dict[str, float] = field(default_factory=dict)  # by SLO: uncertainty / limit
    turnaround_ms: Turnaround = Turnaround()  # between two requests of a user, ms
    cpu: dict[str, float] = field(default_factory=dict)  # CPU by process, cores
    loop_lag_max_ms: float = nan  # the latest that an event loop came to its work, ms
    stamp_coverage: float = nan  # share of the reads that had a kernel stamp
    clock_steps: int = 0  # jumps of the machine's clock


def client_figures(
    recorded: Recorded,
    window: Window,
    slos: Sequence[Slo],
    samples: Sequence[ClientSample],
    gaps: Gaps | None = None,
) -> ClientFigures:
    """Of the records and the samples of a window."""
    turns = np.sort(turnarounds(recorded.table, window))
    inside = within(samples, window.settled_ns, window.end_ns)
    turnaround = Turnaround()
    if len(turns):
        p99 = quantile(turns, 0.99) / MS
        turnaround = Turnaround(round(float(turns.mean()) / MS, 4), round(p99, 4))
    found = instruments(recorded, window, slos, gaps)
    return ClientFigures(
        {f"{x.metric}_p{x.q * 100:g}": round(x.share, 5) for x in found},
        turnaround,
        cpu=_cpu(inside),
        loop_lag_max_ms=max((s.loop_lag_ms for s in inside), default=nan),
        stamp_coverage=_coverage(inside),
        clock_steps=_rise(inside, "clock_steps"),
    )


def _by_process(samples: Sequence[ClientSample]) -> dict[str, list[ClientSample]]:
    found: dict[str, list[ClientSample]] = {}
    for sample in samples:
        found.setdefault(sample.process, []).append(sample)
    return {name: seen for name, seen in found.items() if len(seen) > 1}


def _cpu(samples: Sequence[ClientSample]) -> dict[str, float]:
    """By process, cores used between the window's first and last sample."""
    return {
        name: round((seen[-1].cpu_s - seen[0].cpu_s) / (seen[-1].at_ns - seen[0].at_ns) * 1e9, 3)
        for name, seen in sorted(_by_process(samples).items())
        if seen[-1].at_ns > seen[0].at_ns
    }


def _rise(samples: Sequence[ClientSample], name: str) -> int:
    """Growth of a counter within the window, all processes together."""
    spans = _by_process(samples).values()
    return sum(getattr(seen[-1], name) - getattr(seen[0], name) for seen in spans)


def _coverage(samples: Sequence[ClientSample]) -> float:
    """Share of the window's reads that had a kernel stamp."""
    reads, stamped = _rise(samples, "reads"), _rise(samples, "stamped_reads")
    return round(stamped / reads, 6) if reads else nan
