"""The server's side of one window: means and maxima of its gauges, what its counters grew by.

Differences are between the first and the last scrape inside the window. vLLM observes queue,
prefill, decode and e2e when a request ends, TTFT and ITL as tokens come: in a window of many
lifetimes they are the same requests, in a short one they are not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import fsum, isnan, nan
from typing import TYPE_CHECKING, Final

from harness.measure.histogram import delta, quantile_bounds
from harness.measure.resets import reset
from harness.measure.samples import SUMMED
from harness.measure.seats import flat_share
from harness.measure.typed import rounded
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.histogram import Histogram
    from harness.measure.samples import ServerSample

PLACES: Final = 6
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


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """The server's own figures of one window, all engines together; null: not reported."""

    samples: int = 0  # scrapes of /metrics in the window
    running_mean: float = nan  # requests in the batch
    running_max: float = nan  # requests in the batch, at most
    running_flat_share: float = nan  # share of the scrapes with a queue with running near its most
    waiting_mean: float = nan  # requests in the queue
    waiting_max: float = nan  # requests in the queue, at most
    waiting_capacity_mean: float = nan  # requests in the queue for a slot or for KV blocks
    waiting_deferred_mean: float = nan  # requests in the queue for something else
    kv_usage_mean: float = nan  # share of the KV cache in use, mean of the engines
    kv_usage_max: float = nan  # share of the KV cache in use, at most
    kv_usage_fullest_mean: float = nan  # share of the KV cache in use in the fullest engine
    kv_usage_fullest_max: float = nan  # share of the KV cache in use in the fullest engine, at most
    awake_min: float = nan  # engines that do not sleep, at least
    preemptions: float = nan  # requests that lost their KV blocks
    prefix_hit_share: float = nan  # share of the prompt tokens found in the prefix cache
    prompt_tokens_per_s: float = nan  # prompt tokens computed per second
    generation_tokens_per_s: float = nan  # output tokens per second
    requests_per_s: float = nan  # requests that ended per second
    api_server_cores: float = nan  # CPU of the API server's process, cores
    engine_cores: float = nan  # CPU of the engine's process, cores
    ttft_mean_s: float = nan  # mean time to first token, s
    queue_mean_s: float = nan  # mean time in the queue, s
    prefill_mean_s: float = nan  # mean time from a request's first step to its first token, s
    decode_mean_s: float = nan  # mean time from a request's first token to its last, s
    inference_mean_s: float = nan  # mean of prefill and decode together, s
    e2e_mean_s: float = nan  # mean time from a request's arrival to its end, s
    itl_mean_s: float = nan  # mean time between two tokens, s
    ttft_p95_s: tuple[float, float] | None = None  # bucket that holds the p95 TTFT, s
    itl_p95_s: tuple[float, float] | None = None  # bucket that holds the p95 ITL, s
    step_tokens_mean: float = nan  # tokens in an engine step
    finished: dict[str, int] = field(default_factory=dict)  # requests that ended, by vLLM's reason


def server_figures(samples: Sequence[ServerSample]) -> ServerFigures:
    """Of the samples of a window."""
    step = between(samples, "step_tokens")
    figures = ServerFigures(
        samples=len(samples), running_mean=_mean(samples, "running"),
        running_max=_most(samples, "running"), running_flat_share=flat_share(samples),
        waiting_mean=_mean(samples, "waiting"), waiting_max=_most(samples, "waiting"),
        waiting_capacity_mean=_mean(samples, "waiting_capacity"),
        waiting_deferred_mean=_mean(samples, "waiting_deferred"),
        kv_usage_mean=_mean(samples, "kv_usage"), kv_usage_max=_most(samples, "kv_usage"),
        kv_usage_fullest_mean=_mean(samples, "kv_usage_fullest"),
        kv_usage_fullest_max=_most(samples, "kv_usage_fullest"),
        awake_min=-_most(samples, "awake", -1), preemptions=grown(samples, "preemptions_total"),
        prefix_hit_share=_share(samples, "prefix_hits_total", "prefix_queries_total"),
        prompt_tokens_per_s=per_s(samples, "prompt_tokens_total"),
        generation_tokens_per_s=per_s(samples, "generation_tokens_total"),
        requests_per_s=per_s(samples, "requests_total"),
        api_server_cores=per_s(samples, "api_cpu_s"), engine_cores=per_s(samples, "engine_cpu_s"),
        ttft_mean_s=mean_s(samples, "ttft"), queue_mean_s=mean_s(samples, "queue"),
        prefill_mean_s=mean_s(samples, "prefill"), decode_mean_s=mean_s(samples, "decode"),
        inference_mean_s=mean_s(samples, "inference"), e2e_mean_s=mean_s(samples, "e2e"),
        itl_mean_s=mean_s(samples, "itl"),
        # the other histograms' buckets are too coarse for a quantile: their first ends at 0.3 s
        ttft_p95_s=bucket(between(samples, "ttft"), 0.95),
        itl_p95_s=bucket(between(samples, "itl"), 0.95),
        step_tokens_mean=step.mean if step else nan, finished=_finished(samples),
    )  # fmt: skip
    return rounded(figures, PLACES)


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


def bucket(histogram: Histogram | None, q: float) -> tuple[float, float] | None:
    """The bucket that holds a quantile; None when too little was observed beyond it."""
    if histogram is None or histogram.count * (1 - q) < BEYOND:
        return None
    return quantile_bounds(histogram, q)


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


def _finished(samples: Sequence[ServerSample]) -> dict[str, int]:
    """Requests that ended, by the reason that the server gives; only reasons that occurred."""
    if len(samples) < 2 or reset(samples):  # noqa: PLR2004 - as above
        return {}
    first, last = samples[0].finished, samples[-1].finished
    more = {reason: count - first.get(reason, 0.0) for reason, count in last.items()}
    return {reason: round(count) for reason, count in more.items() if count > 0}
