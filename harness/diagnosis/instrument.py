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

from harness.core.arrays import between
from harness.diagnosis.client_host import UNKNOWN_HOST, HostFigures, remedy
from harness.diagnosis.send_delay import consecutive_requests
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
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.core.arrays import Floats
    from harness.metrics.evidence import Window
    from harness.metrics.record_source import RecordSource
    from harness.metrics.token_gaps import WindowGapCounter
    from harness.records.record_table import RecordTable


# Of the limit (or of the value above it): the bracket's own width. Above it the level is invalid,
# and a search holds it again (docs/precision.md).
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
        width_ns = 0.0
        if np.isfinite(self.lo_ns):
            width_ns = self.hi_ns - self.lo_ns
        return float(width_ns / max(self.scale_ns, 1.0))


def quantile_uncertainties(
    recorded: RecordSource,
    window: Window,
    slos: Sequence[Slo],
    gaps: Mapping[str, WindowGapCounter] | None = None,
) -> list[QuantileUncertainty]:
    """The quantiles that the level is judged by: those of its SLOs, else p95 TTFT and p95 ITL.

    `gaps`: those of the window, if they have been counted already.
    """
    table = recorded.table
    span = (window.settled_ns, window.end_ns)
    # Only quantiles that decide: a sender that stands still for a second in a minute moves a p99,
    # and no p95 (decision 18).
    judged = [(slo.metric, slo.q, float(slo.limit_ns)) for slo in slos]
    if not judged:
        judged = [(key, 0.95, 0.0) for key in DEFAULT_PRECISION_NS]
    # Gaps need a pass over all tokens; the other latencies do not.
    if gaps is None and any(key in GAPS for key, _, _ in judged):
        gaps = WindowTokens.of(recorded, span).gaps
    blocked = blocked_windows(table, [span])
    uncertainties = []
    for key, q, limit_ns in judged:
        figures: LatencyFigures
        if gaps is not None and key in GAPS:
            figures = gaps[key]
        else:
            figures = _closed(sample_figures(table, key, blocked))
        if figures.n >= MIN_OBSERVATIONS:
            claimed_ns = _claimed_precision_ns(key, window)
            uncertainties.append(_bounds(figures, key, q, limit_ns, claimed_ns))
    return uncertainties


def _claimed_precision_ns(key: str, window: Window) -> float:
    by_schedule = window.load.by_schedule and key not in GAPS
    if by_schedule:
        return SCHEDULE_PRECISION_NS
    return DEFAULT_PRECISION_NS.get(key, 0.0)


def _closed(sample: SampleFigures) -> SampleFigures:
    """Without the width of open requests: that they are open is no uncertainty of the clock."""
    seen = sample.seen
    closed = np.isfinite(seen.hi_ns) | ~np.isfinite(seen.ns)
    lo_ns = np.where(closed, seen.lo_ns, seen.ns)
    hi_ns = np.where(closed, seen.hi_ns, seen.ns)
    return SampleFigures(replace(seen, lo_ns=lo_ns, hi_ns=hi_ns), sample.blocks)


def _bounds(
    figures: LatencyFigures, key: str, q: float, limit_ns: float, claimed_ns: float
) -> QuantileUncertainty:
    value_ns = figures.quantile(q)
    low_ns, high_ns = figures.instrument(q)
    scale_ns = limit_ns
    if np.isfinite(value_ns):
        scale_ns = max(limit_ns, value_ns)
    # Without a limit a bracket as wide as the claimed accuracy is fine, however short the latency.
    if not limit_ns:
        scale_ns = max(scale_ns, claimed_ns / MAX_INSTRUMENT_SHARE)
    return QuantileUncertainty(key, q, value_ns, low_ns, high_ns, scale_ns)


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
    uncertainties = quantile_uncertainties(recorded, window, slos, gaps)
    if verdicts_only:
        uncertainties = [x for x in uncertainties if _holds_a_limit(x, slos)]
    worst = max(uncertainties, key=lambda x: x.share, default=None)
    if worst is None or worst.share <= MAX_INSTRUMENT_SHARE:
        return ""
    name = "TPOT" if worst.metric in SPEEDS else SLO_METRICS[worst.metric].name
    why = _why_uncertain(recorded.table, worst.scale_ns)
    return (
        f"this client can only place p{worst.q * 100:g} {name} between {worst.lo_ns / MS:.4g} and "
        f"{worst.hi_ns / MS:.4g} ms, {worst.share:.0%} of its limit or value: expected at most "
        f"{MAX_INSTRUMENT_SHARE:.0%} ({why}); {remedy(host)}"
    )


def _holds_a_limit(known: QuantileUncertainty, slos: Sequence[Slo]) -> bool:
    """Whether the limit of an SLO on this quantile lies within its bounds."""
    for slo in slos:
        is_on_it = slo.metric == known.metric and slo.q == known.q
        if is_on_it and known.lo_ns <= slo.limit_ns <= known.hi_ns:
            return True
    return False


def _why_uncertain(table: RecordTable, scale_ns: float) -> str:
    lags_ns = schedule_lag(table).ns
    longest_ns = lags_ns.max(initial=0.0)
    if longest_ns > MAX_INSTRUMENT_SHARE * scale_ns:
        return f"requests were sent up to {longest_ns / MS:.4g} ms later than they were due"
    if (table.not_before_ns == table.at_ns).any():
        return "two arrivals shared a read, or were read late"
    return "no arrival has a kernel stamp here"


def turnarounds(table: RecordTable, window: Window) -> Floats:
    """Delays in ns between the end of a user's request and the start of its next one in the window.

    A closed loop sends as soon as the planned think time is over: the rest is the client's own.
    """
    before, after = consecutive_requests(table)
    closed_loop = table.scheduled_ns[after] < 0
    inside = between(table.sent_ns[after], window.settled_ns, window.end_ns)
    think_ns = table.think_ns[before].clip(min=0)
    due_ns = table.done_ns[before] + think_ns
    delays_ns = table.sent_ns[after] - due_ns
    counted_ns = delays_ns[closed_loop & inside]
    return np.asarray(counted_ns.clip(min=0), np.float64)


def client_figures(
    recorded: RecordSource,
    window: Window,
    slos: Sequence[Slo],
    samples: Sequence[ClientSample],
    gaps: Mapping[str, WindowGapCounter] | None = None,
) -> ClientFigures:
    """Of the records and the samples of a window."""
    delays_ns = np.sort(turnarounds(recorded.table, window))
    turnaround = Turnaround()
    if len(delays_ns):
        mean_ms = round(float(delays_ns.mean()) / MS, 4)
        p99_ms = round(quantile(delays_ns, 0.99) / MS, 4)
        turnaround = Turnaround(mean_ms, p99_ms)
    shares = {}
    for known in quantile_uncertainties(recorded, window, slos, gaps):
        name = f"{known.metric}_{statistic(known.metric, known.q)}"
        shares[name] = round(known.share, 5)
    inside = samples_within(samples, window.settled_ns, window.end_ns)
    loop_lags_ms = [sample.loop_lag_ms for sample in inside]
    return ClientFigures(
        shares,
        turnaround,
        cpu=_cores(inside),
        loop_lag_max_ms=max(loop_lags_ms, default=nan),
        stamp_coverage=_coverage(inside),
        clock_steps=_increase(inside, "clock_steps"),
    )


def _first_and_last(
    samples: Sequence[ClientSample],
) -> dict[str, tuple[ClientSample, ClientSample]]:
    """Of each process; those with a single sample are left out."""
    # Each process counts for itself, from its own start on.
    by_process: dict[str, list[ClientSample]] = {}
    for sample in samples:
        by_process.setdefault(sample.process, []).append(sample)
    ends = {}
    for name, own in by_process.items():
        if len(own) > 1:
            ends[name] = (own[0], own[-1])
    return ends


def _cores(samples: Sequence[ClientSample]) -> dict[str, float]:
    """Cores used by each process between the window's first and last sample."""
    cores = {}
    for name, (first, last) in sorted(_first_and_last(samples).items()):
        span_ns = last.at_ns - first.at_ns
        if span_ns > 0:
            used_s = last.cpu_s - first.cpu_s
            cores[name] = round(used_s / span_ns * SECOND, 3)
    return cores


def _increase(samples: Sequence[ClientSample], name: str) -> int:
    """Increase of a counter within the window, summed over the processes."""
    increase = 0
    for first, last in _first_and_last(samples).values():
        increase += getattr(last, name) - getattr(first, name)
    return increase


def _coverage(samples: Sequence[ClientSample]) -> float:
    """Share of the window's reads that had a kernel stamp."""
    reads = _increase(samples, "reads")
    if not reads:
        return nan
    return round(_increase(samples, "stamped_reads") / reads, 6)
