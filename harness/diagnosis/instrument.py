"""Can the client's measurements of a level be trusted? Their own uncertainty against the limit.

Every observation lies in [lo, hi], which are equal if the kernel's stamp is exact. The quantile of
all lows and that of all highs enclose the true quantile. When the two are far apart, on the scale
on which the quantile is judged, the client was the bottleneck and the level must not be used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.diagnosis.client_host import UNKNOWN_HOST, HostFigures, remedy
from harness.metrics.latency_figures import (
    LatencyFigures,
    SampleFigures,
    blocked_windows,
    sample_figures,
)
from harness.metrics.level_figures import ClientFigures, Turnaround
from harness.metrics.metrics import GAPS, SLO_METRICS, SPEEDS, schedule_lag
from harness.metrics.slo import Slo, statistic
from harness.metrics.statistics import quantile
from harness.metrics.window_summary import WindowTokens
from harness.records.samples import ClientSample, samples_within
from harness.units import MS

if TYPE_CHECKING:
    from harness.core.arrays import Floats
    from harness.metrics.evidence import Window
    from harness.metrics.record_source import RecordSource
    from harness.metrics.token_gaps import WindowGapCounter
    from harness.records.record_table import RecordTable


# Of the limit (or of the value above it): the bracket's own width.
MAX_INSTRUMENT_SHARE: Final = 0.05
# Without an SLO these latencies are judged; the values are the accuracy that the harness claims.
DEFAULT_PRECISION_NS: Final = {"ttft": 0.5 * MS, "itl": 0.1 * MS}
SCHEDULE_PRECISION_NS: Final = 2.5 * MS  # in an open loop: a timer, and the request's way out
MIN_OBSERVATIONS: Final = 20  # observations: fewer cannot have a p95


@dataclass(frozen=True, slots=True)
class QuantileUncertainty:
    """One quantile and its bounds from the uncertainty of the stamps, in ns."""

    metric: str
    q: float
    value_ns: float
    lo_ns: float
    hi_ns: float
    scale_ns: float  # what the width is compared with

    @property
    def share(self) -> float:
        """Width of the bounds over the scale; 0 if both bounds are infinite."""
        width = self.hi_ns - self.lo_ns if np.isfinite(self.lo_ns) else 0.0
        return float(width / max(self.scale_ns, 1.0))


def quantile_uncertainties(
    recorded: RecordSource,
    window: Window,
    slos: Sequence[Slo],
    gaps: Mapping[str, WindowGapCounter] | None = None,
) -> list[QuantileUncertainty]:
    """The quantiles that the level is judged by: those of its SLOs, else p95 TTFT and p95 ITL.

    `gaps`: those of the window, if they have been counted already.
    """
    table, span = recorded.table, (window.settled_ns, window.end_ns)
    wanted = [(s.metric, s.q, float(s.limit_ns)) for s in slos]
    wanted = wanted or [(key, 0.95, 0.0) for key in DEFAULT_PRECISION_NS]
    if gaps is None and any(key in GAPS for key, _, _ in wanted):
        gaps = WindowTokens.of(recorded, span).gaps
    found = []
    for key, q, limit_ns in wanted:
        if gaps is not None and key in GAPS:
            seen: LatencyFigures = gaps[key]
        else:
            seen = _closed(sample_figures(table, key, blocked_windows(table, [span])))
        if seen.n >= MIN_OBSERVATIONS:
            claimed = DEFAULT_PRECISION_NS.get(key, 0.0)
            if window.rate_per_s and key not in GAPS:
                claimed = SCHEDULE_PRECISION_NS
            found.append(_bounds(seen, key, q, limit_ns, claimed))
    return found


def _closed(sample: SampleFigures) -> SampleFigures:
    """Without the width of open requests: that they are open is no uncertainty of the clock."""
    seen = sample.seen
    closed = np.isfinite(seen.hi_ns) | ~np.isfinite(seen.ns)
    lo, hi = (np.where(closed, ends, seen.ns) for ends in (seen.lo_ns, seen.hi_ns))
    return SampleFigures(replace(seen, lo_ns=lo, hi_ns=hi), sample.blocks)


def _bounds(
    seen: LatencyFigures, key: str, q: float, limit_ns: float, claimed_ns: float
) -> QuantileUncertainty:
    value, (low, high) = seen.quantile(q), seen.instrument(q)
    scale = max(limit_ns, value if np.isfinite(value) else 0.0)
    if not limit_ns:
        scale = max(scale, claimed_ns / MAX_INSTRUMENT_SHARE)
    return QuantileUncertainty(key, q, value, low, high, scale)


def instrument_sentence(
    recorded: RecordSource,
    window: Window,
    slos: Sequence[Slo],
    gaps: Mapping[str, WindowGapCounter] | None = None,
    *,
    verdicts_only: bool = False,
    host: HostFigures = UNKNOWN_HOST,
) -> str:
    """Why the level's figures must not be used, with a remedy; "" if they may.

    `verdicts_only`: they are, as long as each SLO's limit lies on one side of what is known.
    `host`: the client's machine in the window, which the remedy follows.
    """
    found = quantile_uncertainties(recorded, window, slos, gaps)
    if verdicts_only:
        limits = [(slo.metric, slo.q, slo.limit_ns) for slo in slos]
        found = [
            x
            for x in found
            if any((x.metric, x.q) == (m, q) and x.lo_ns <= ns <= x.hi_ns for m, q, ns in limits)
        ]
    worst = max(found, key=lambda x: x.share, default=None)
    if worst is None or worst.share <= MAX_INSTRUMENT_SHARE:
        return ""
    exact = recorded.table.not_before_ns == recorded.table.at_ns
    name = "TPOT" if worst.metric in SPEEDS else SLO_METRICS[worst.metric].name
    lags = schedule_lag(recorded.table).ns
    why = (
        f"requests were sent up to {lags.max() / MS:.4g} ms later than they were due"
        if len(lags) and lags.max() > MAX_INSTRUMENT_SHARE * worst.scale_ns
        else "two arrivals shared a read, or were read late"
        if exact.any()
        else "no arrival has a kernel stamp here"
    )
    return (
        f"this client cannot tell p{worst.q * 100:g} {name} better than "
        f"{worst.lo_ns / MS:.4g} to {worst.hi_ns / MS:.4g} ms, {worst.share:.0%} of the scale it "
        f"is judged on: expected at most {MAX_INSTRUMENT_SHARE:.0%} ({why}); {remedy(host)}"
    )


def turnarounds(table: RecordTable, window: Window) -> Floats:
    """Delays in ns between the end of a user's request and the start of its next one in the window.

    A closed loop sends as soon as the planned think time is over: the rest is the client's own.
    """
    # Sorted by worker, then user, then time: neighbors of one user are consecutive requests.
    order = np.lexsort((table.sent_ns, table.user, table.worker))
    user, worker = table.user[order], table.worker[order]
    same = (
        (table.scheduled_ns[order][1:] < 0) & (user[1:] == user[:-1]) & (worker[1:] == worker[:-1])
    )
    sent, due = table.sent_ns[order], (table.done_ns + table.think_ns.clip(min=0))[order]
    inside = (sent[1:] >= window.settled_ns) & (sent[1:] <= window.end_ns)
    gaps = (sent[1:] - due[:-1])[same & inside]
    return np.asarray(gaps.clip(min=0), np.float64)


def client_figures(
    recorded: RecordSource,
    window: Window,
    slos: Sequence[Slo],
    samples: Sequence[ClientSample],
    gaps: Mapping[str, WindowGapCounter] | None = None,
) -> ClientFigures:
    """Of the records and the samples of a window."""
    turns = np.sort(turnarounds(recorded.table, window))
    inside = samples_within(samples, window.settled_ns, window.end_ns)
    turnaround = Turnaround()
    if len(turns):
        p99 = quantile(turns, 0.99) / MS
        turnaround = Turnaround(round(float(turns.mean()) / MS, 4), round(p99, 4))
    found = quantile_uncertainties(recorded, window, slos, gaps)
    return ClientFigures(
        {f"{x.metric}_{statistic(x.metric, x.q)}": round(x.share, 5) for x in found},
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
    """Cores used by each process between the window's first and last sample."""
    return {
        name: round((seen[-1].cpu_s - seen[0].cpu_s) / (seen[-1].at_ns - seen[0].at_ns) * 1e9, 3)
        for name, seen in sorted(_by_process(samples).items())
        if seen[-1].at_ns > seen[0].at_ns
    }


def _rise(samples: Sequence[ClientSample], name: str) -> int:
    """Increase of a counter within the window, summed over the processes."""
    spans = _by_process(samples).values()
    return sum(getattr(seen[-1], name) - getattr(seen[0], name) for seen in spans)


def _coverage(samples: Sequence[ClientSample]) -> float:
    """Share of the window's reads that had a kernel stamp."""
    reads, stamped = _rise(samples, "reads"), _rise(samples, "stamped_reads")
    return round(stamped / reads, 6) if reads else nan
