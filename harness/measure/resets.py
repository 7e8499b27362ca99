"""Did the server start anew between two readings? Then no difference across them means anything."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.evidence import Window
    from harness.measure.samples import ServerSample

COUNTERS: Final = (
    "generation_tokens_total",
    "prompt_tokens_total",
    "requests_total",
    "preemptions_total",
    "prefix_queries_total",
    "prefix_hits_total",
    "api_cpu_s",
)


def fell(before: ServerSample, after: ServerSample) -> str:
    """What cannot have gone down and did, in words; "" when nothing did (NaN says nothing)."""
    for name in COUNTERS:
        old, new = getattr(before, name), getattr(after, name)
        if new < old:
            return f"{name.removesuffix('_total').replace('_', ' ')} fell from {old:g} to {new:g}"
    for key, histogram in after.histograms.items():
        known = before.histograms.get(key)
        if known is not None and histogram.count < known.count:
            return f"the count of {key} fell from {known.count:g} to {histogram.count:g}"
    if after.started_s > before.started_s + 1:  # seconds: some servers round
        return f"its process started {after.started_s - before.started_s:.0f} s later than before"
    return ""


def reset(samples: Sequence[ServerSample]) -> str:
    """The first such thing among samples in time order; "" when there is none."""
    return next(filter(None, (fell(a, b) for a, b in pairwise(samples))), "")


def reset_sentence(window: Window, samples: Sequence[ServerSample]) -> str:
    """Why the step must not be used, or "": from the last scrape before it to its last one."""
    until = [sample for sample in samples if sample.at_ns <= window.end_ns]
    before = sum(sample.at_ns < window.settled_ns for sample in until)
    seen = reset(until[max(before - 1, 0) :])
    if not seen:
        return ""
    return (
        f"between two scrapes of the server {seen}: it was restarted, or a load balancer answers "
        "/metrics from several servers; look at its log, or give the URL of one server"
    )
