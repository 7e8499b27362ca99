"""The server's side of one window: means and maxima of its gauges, what its counters grew by.

Differences are between the first and the last scrape inside the window. vLLM observes queue,
prefill, decode and e2e when a request ends, TTFT and ITL as tokens come: in a window of many
lifetimes they are the same requests, in a short one they are not.
"""

from __future__ import annotations

from math import fsum, isnan, nan
from typing import TYPE_CHECKING, Any, Final

from harness.measure.histogram import delta, quantile_bounds
from harness.measure.resets import reset
from harness.measure.samples import SUMMED
from harness.measure.seats import flat_share
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.histogram import Histogram
    from harness.measure.samples import ServerSample

PLACES: Final = 6
MEANS: Final = ("ttft", "queue", "prefill", "decode", "inference", "e2e", "itl")
QUANTILES: Final = ("ttft", "itl")  # the others' buckets are too coarse: their first ends at 0.3 s
P95: Final = 0.95
BEYOND: Final = 10  # observations that a quantile needs beyond it
# what a verdict rests on, in words, by the figure that shows whether the server says it
SAYS: Final = {
    "running": "running requests",
    "waiting": "waiting requests",
    "kv_usage": "KV cache usage",
    "preemptions_total": "preemptions",
    "generation_tokens_total": "generated tokens",
    "prefix_queries_total": "prefix cache hits",
    "queue_count": "queue time",
    "prefill_count": "prefill time",
}


def server_figures(samples: Sequence[ServerSample]) -> dict[str, Any]:
    """Of a window's samples, for JSON: seconds, tokens, shares; None where nothing is known."""
    figures: dict[str, Any] = {"samples": len(samples)}
    for name in ("running", "waiting", "kv_usage"):
        figures |= {f"{name}_mean": _mean(samples, name), f"{name}_max": _most(samples, name)}
    figures |= {
        "running_flat_share": flat_share(samples),
        "kv_usage_fullest_mean": _mean(samples, "kv_usage_fullest"),
        "kv_usage_fullest_max": _most(samples, "kv_usage_fullest"),
        "waiting_capacity_mean": _mean(samples, "waiting_capacity"),
        "waiting_deferred_mean": _mean(samples, "waiting_deferred"),
        "awake_min": -_most(samples, "awake", -1),
        "preemptions": grown(samples, "preemptions_total"),
        "prefix_hit_share": _share(samples, "prefix_hits_total", "prefix_queries_total"),
    }
    for name in ("prompt_tokens", "generation_tokens", "requests"):
        figures[f"{name}_per_s"] = per_s(samples, f"{name}_total")
    figures["api_server_cores"] = per_s(samples, "api_cpu_s")
    figures["engine_cores"] = per_s(samples, "engine_cpu_s")
    figures |= {f"{name}_mean_s": mean_s(samples, name) for name in MEANS}
    step = between(samples, "step_tokens")
    figures["step_tokens_mean"] = step.mean if step else nan
    told: dict[str, Any] = {key: _told(value) for key, value in figures.items()}
    for name in QUANTILES:
        told[f"{name}_p95_s"] = _p95(between(samples, name))
    return told | _finished(samples)


def grown(samples: Sequence[ServerSample], name: str) -> float:
    """What a counter grew by; NaN without two readings or across a restart."""
    if len(samples) < 2 or reset(samples):  # noqa: PLR2004 - a difference needs two
        return nan
    return float(getattr(samples[-1], name) - getattr(samples[0], name))


def per_s(samples: Sequence[ServerSample], name: str) -> float:
    """A counter's growth per second between the first and the last sample."""
    if len(samples) < 2:  # noqa: PLR2004 - as above
        return nan
    return grown(samples, name) * SECOND / max(samples[-1].at_ns - samples[0].at_ns, 1)


def between(samples: Sequence[ServerSample], key: str) -> Histogram | None:
    """What one histogram observed between the first and the last sample."""
    if len(samples) < 2:  # noqa: PLR2004 - as above
        return None
    first, last = (sample.histograms.get(key) for sample in (samples[0], samples[-1]))
    return delta(first, last) if first is not None and last is not None else None


def mean_s(samples: Sequence[ServerSample], key: str) -> float:
    """Mean of what a histogram of seconds observed; NaN when that is nothing."""
    histogram = between(samples, key)
    if histogram is not None:
        return histogram.mean
    if key not in SUMMED:
        return nan
    count = grown(samples, f"{key}_count")
    return grown(samples, f"{key}_sum_s") / count if count > 0 else nan


def lacking(samples: Sequence[ServerSample]) -> list[str]:
    """What the server never said, of what a verdict rests on; without samples it is all of it."""
    return [words for name, words in SAYS.items() if all(isnan(getattr(s, name)) for s in samples)]


def _values(samples: Sequence[ServerSample], name: str) -> list[float]:
    values = (float(getattr(sample, name)) for sample in samples)
    return [value for value in values if not isnan(value)]


def _mean(samples: Sequence[ServerSample], name: str) -> float:
    values = _values(samples, name)
    return fsum(values) / len(values) if values else nan


def _most(samples: Sequence[ServerSample], name: str, sign: int = 1) -> float:
    return max((sign * value for value in _values(samples, name)), default=nan)


def _share(samples: Sequence[ServerSample], part: str, whole: str) -> float:
    of = grown(samples, whole)
    return grown(samples, part) / of if of > 0 else nan


def _p95(histogram: Histogram | None) -> list[float] | None:
    """Bounds of the p95; None when too little was observed beyond it."""
    if histogram is None or histogram.count * (1 - P95) < BEYOND:
        return None
    bounds = quantile_bounds(histogram, P95)
    return None if bounds is None else list(bounds)


def _finished(samples: Sequence[ServerSample]) -> dict[str, float]:
    """Requests that ended, by the reason that the server gives; only reasons that occurred."""
    if len(samples) < 2 or reset(samples):  # noqa: PLR2004 - as above
        return {}
    first, last = samples[0].finished, samples[-1].finished
    more = {reason: count - first.get(reason, 0.0) for reason, count in last.items()}
    return {f"finished_{reason}": round(count) for reason, count in more.items() if count > 0}


def _told(value: float) -> float | None:
    return value if isinstance(value, int) else None if isnan(value) else round(value, PLACES)
