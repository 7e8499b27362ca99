"""Sentences beside the answer: the sweet spot, and a GPU that idles while requests wait."""

from __future__ import annotations

from collections import defaultdict
from math import inf, isnan, nan
from statistics import fmean
from typing import TYPE_CHECKING, Final

from harness.metrics.numbers import format_number
from harness.records.samples import samples_within
from harness.search.sweet_spot import SHARE, sweet_spot

if TYPE_CHECKING:
    from harness.metrics.result import Level
    from harness.report.report_data import ReportData

IDLE_PCT: Final = 50.0  # a GPU that is busy less than that of the time


def sweet_spot_sentence(facts: ReportData) -> str:
    """The range of levels near the best throughput over latency; "" without three levels.

    It asks for no SLO, so its upper end may be above the knee of one.
    """
    if not facts.kind.spans_loads or facts.unit.by_schedule:
        return ""
    spot = sweet_spot(facts.used)
    if spot is None:
        return ""
    name = "Sweet spot, regardless of the SLO" if facts.slos else "Sweet spot"
    near = f"{SHARE:.0%} of the best throughput over latency"
    # A sweep counts users everywhere; the headline of a search, concurrent requests.
    last = facts.unit.text(spot.last) if facts.kind.searches else facts.unit.short(spot.last)
    if spot.is_highest:
        last += " (the highest level held, so it may reach further)"
    if spot.first == spot.last:
        return f"{name}: {last}; the levels next to it have less than {near}."
    return f"{name}: {spot.first:,.0f} to {last}; each level there has at least {near}."


def idle_gpu_sentence(facts: ReportData) -> str:
    """At the lowest level whose p95 TTFT is over its limit; "" where the GPUs are busy, too."""
    limit_ms = facts.limit_ms("ttft")
    for level in sorted(facts.used, key=lambda level: level.load):
        # NaN, without an SLO on it or where TTFT cannot be told, is below nothing; infinite is a
        # level whose requests failed.
        if limit_ms < level.latency("ttft").p95 < inf:
            return _idle(facts, level)
    return ""


def _idle(facts: ReportData, level: Level) -> str:
    busy_pct = _busiest_pct(facts, level)
    # NaN, where no GPU was read, is not below.
    if not busy_pct < IDLE_PCT:
        return ""
    ttft_ms = format_number(level.ttft_ms.p95)
    return (
        f"p95 TTFT is {ttft_ms} ms at {facts.unit.text(level.load)} while the GPUs are busy at "
        f"most {busy_pct:.0f}% of the time: requests wait in front of them, for an API server, the "
        "tokenizer, the scheduler or the network, and a faster GPU would not help."
    )


def _busiest_pct(facts: ReportData, level: Level) -> float:
    """How much of the time the busiest GPU was busy; NaN where none was read.

    Not the mean of all: a machine may have GPUs that the server does not use.
    """
    by_gpu: defaultdict[int, list[float]] = defaultdict(list)
    for sample in samples_within(facts.run.gpu, level.settled_ns, level.end_ns):
        if not isnan(sample.util_pct):
            by_gpu[sample.gpu].append(sample.util_pct)
    return max(map(fmean, by_gpu.values()), default=nan)
