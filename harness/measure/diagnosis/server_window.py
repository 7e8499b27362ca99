"""The server's side of one window: means and maxima of gauges, increases of counters.

Increases are between the first and the last scrape in the window. vLLM observes queue,
prefill, decode and e2e when a request ends, but TTFT and ITL when tokens are generated: in a window
of many lifetimes these are the same requests, in a short one they are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import fsum, isnan, nan
from typing import TYPE_CHECKING, Any, Final

from harness.measure.diagnosis.slots import flat_share
from harness.measure.histogram import Histogram, histogram_delta, quantile_bounds
from harness.measure.records.samples import SUMMED_HISTOGRAMS, ServerSample
from harness.measure.typed_json import round_floats
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.measure.search.evidence import Window


COUNTERS: Final = (
    "generation_tokens_total",
    "prompt_tokens_total",
    "requests_total",
    "preemptions_total",
    "prefix_queries_total",
    "prefix_hits_total",
    "spec_draft_tokens_total",
    "api_cpu_s",
)


def counter_that_fell(before: ServerSample, after: ServerSample) -> str:
    """Which counter decreased between two readings, in words; "": none (NaN is ignored)."""
    for name in before.replicas.keys() & after.replicas.keys():  # their sum may still have risen
        if fell := counter_that_fell(before.replicas[name], after.replicas[name]):
            return f"{fell} ({name})"
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


def first_counter_reset(samples: Sequence[ServerSample]) -> str:
    """The first decrease among samples in time order, in words; "": none."""
    return next(filter(None, (counter_that_fell(a, b) for a, b in pairwise(samples))), "")


def reset_sentence(window: Window, samples: Sequence[ServerSample]) -> str:
    """Why the level must not be used, or "": by the scrapes from the last one before it."""
    until = [sample for sample in samples if sample.at_ns <= window.end_ns]
    before = sum(sample.at_ns < window.settled_ns for sample in until)
    seen = first_counter_reset(until[max(before - 1, 0) :])
    if not seen:
        return ""
    return (
        f"between two scrapes of the server {seen}: it was restarted, or a load balancer answers "
        "/metrics from several servers; look at its log, or give each server's URL with "
        "--metrics-url"
    )


DECIMALS: Final = 6
MIN_BEYOND_QUANTILE: Final = 10  # observations needed beyond a quantile
MAX_SKEW: Final = 1.5  # load of a replica, as a multiple of an even share; as far below it, too
MIN_IN_FLIGHT: Final = 2  # requests for each replica; with fewer, chance decides
MEANS: Final = ("ttft", "queue", "prefill", "decode", "inference", "e2e", "itl")
GAUGES: Final = (
    *("running", "waiting", "waiting_capacity", "waiting_deferred"),
    *("kv_usage", "kv_usage_fullest"),
)
# What a verdict needs, in words, by the figure that shows whether the server reports it.
REQUIRED_FIGURES: Final = {
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
    """The server's own figures of one window, all engines and replicas; null: not reported."""

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
    spec_acceptance: float = nan  # share of the draft tokens accepted (speculative decoding)
    spec_accepted_length: float = nan  # tokens for each draft: those accepted, and one more
    prompt_cached_share: float = nan  # share of the prompt tokens that were not computed again
    computed_tokens_mean: float = nan  # prompt tokens computed for a request that ended
    preemptions_per_request: float = nan  # of the requests that ended
    admission_rejections: float = nan  # requests that a queue limit turned away
    flops_per_s: float = nan  # of one GPU, by vLLM's estimate (--enable-mfu-metrics)
    memory_bytes_per_s: float = nan  # read and written by one GPU, by vLLM's estimate
    prompt_tokens_per_s: float = nan  # prompt tokens computed per second
    generation_tokens_per_s: float = nan  # output tokens per second
    requests_per_s: float = nan  # requests that ended per second
    api_server_cores: float = nan  # CPU of the API server's process, cores
    api_server_threads: float = nan  # cores that it can use at once; null: one
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
    step = histogram_increase(samples, "step_tokens")
    means: dict[str, Any] = {f"{key}_mean_s": histogram_mean_s(samples, key) for key in MEANS}
    means |= {f"{key}_mean": _mean(samples, key) for key in GAUGES}
    means |= {f"{key}_max": _max(samples, key) for key in GAUGES if not key.startswith("waiting_")}
    figures = ServerFigures(
        samples=len(samples), running_flat_share=flat_share(samples),
        awake_min=-_max(samples, "awake", -1),
        preemptions=counter_increase(samples, "preemptions_total"),
        prefix_hit_share=_share(samples, "prefix_hits_total", "prefix_queries_total"),
        spec_acceptance=_share(samples, "spec_accepted_tokens_total", "spec_draft_tokens_total"),
        spec_accepted_length=1 + _share(samples, "spec_accepted_tokens_total", "spec_drafts_total"),
        prompt_cached_share=_share(samples, "cached_prompt_tokens_total", "prompt_tokens_total"),
        computed_tokens_mean=histogram_mean_s(samples, "computed_tokens"),
        preemptions_per_request=histogram_mean_s(samples, "preemptions"),
        admission_rejections=counter_increase(samples, "admission_rejections_total"),
        flops_per_s=counter_rate(samples, "flops_total"),
        memory_bytes_per_s=counter_rate(samples, "read_bytes_total")
        + counter_rate(samples, "written_bytes_total"),
        prompt_tokens_per_s=counter_rate(samples, "prompt_tokens_total"),
        generation_tokens_per_s=counter_rate(samples, "generation_tokens_total"),
        requests_per_s=counter_rate(samples, "requests_total"),
        api_server_cores=counter_rate(samples, "api_cpu_s"),
        api_server_threads=_max(samples, "api_threads"),
        engine_cores=counter_rate(samples, "engine_cpu_s"),
        **means,
        # The other histograms' buckets are too coarse for a quantile: the first one ends at 0.3 s.
        ttft_p95_s=quantile_bucket(histogram_increase(samples, "ttft"), 0.95),
        itl_p95_s=quantile_bucket(histogram_increase(samples, "itl"), 0.95),
        step_tokens_mean=step.mean if step else nan, finished=_finished(samples),
    )  # fmt: skip
    return round_floats(figures, DECIMALS)


def replica_figures(samples: Sequence[ServerSample]) -> dict[str, ServerFigures]:
    """Of each replica, by its URL; {} if there is one."""
    names = samples[-1].replicas if samples else ()
    return {
        name: server_figures([one.replicas[name] for one in samples if name in one.replicas])
        for name in names
    }


def load_shares(replicas: Mapping[str, ServerFigures]) -> dict[str, float]:
    """Each one's share of the requests in flight, the busiest first; {} without any."""
    load = {name: one.running_mean + one.waiting_mean for name, one in replicas.items()}
    whole = fsum(load.values())
    shares = {name: one / whole for name, one in load.items() if whole > 0}
    return dict(sorted(shares.items(), key=lambda one: -one[1]))


def skew_sentence(replicas: Mapping[str, ServerFigures]) -> str:
    """The busiest and the idlest replica, if one has half as much again, or half, of its share."""
    shares, n = load_shares(replicas), len(replicas)
    # With a request or two for each, a balancer cannot do better.
    few = fsum(one.running_mean + one.waiting_mean for one in replicas.values()) < MIN_IN_FLIGHT * n
    if few or not shares:
        return ""
    order = list(shares)
    busiest, high, idlest, low = order[0], shares[order[0]], order[-1], shares[order[-1]]
    if high * n < MAX_SKEW and low * n > 2 - MAX_SKEW:
        return ""
    return (
        f"{busiest} has {high:.0%} of the requests in flight and {idlest} {low:.0%}, where each of "
        f"{n} replicas should have {1 / n:.0%}: look at how the balancer chooses"
    )


def counter_increase(samples: Sequence[ServerSample], name: str) -> float:
    """Increase of a counter; NaN with fewer than two samples, or across a restart."""
    if len(samples) < 2 or first_counter_reset(samples):  # noqa: PLR2004 - a difference needs two
        return nan
    return float(getattr(samples[-1], name) - getattr(samples[0], name))


def counter_rate(samples: Sequence[ServerSample], name: str) -> float:
    """Increase of a counter per second between the first and the last sample."""
    if len(samples) < 2:  # noqa: PLR2004 - as above
        return nan
    return counter_increase(samples, name) * SECOND / max(samples[-1].at_ns - samples[0].at_ns, 1)


def histogram_increase(samples: Sequence[ServerSample], key: str) -> Histogram | None:
    """The observations of one histogram between the first and the last sample."""
    if len(samples) < 2:  # noqa: PLR2004 - as above
        return None
    first, last = (sample.histograms.get(key) for sample in (samples[0], samples[-1]))
    return histogram_delta(first, last) if first is not None and last is not None else None


def quantile_bucket(histogram: Histogram | None, q: float) -> tuple[float, float] | None:
    """The bucket that contains a quantile; None with too few observations beyond it."""
    if histogram is None or histogram.count * (1 - q) < MIN_BEYOND_QUANTILE:
        return None
    return quantile_bounds(histogram, q)


def histogram_mean_s(samples: Sequence[ServerSample], key: str) -> float:
    """Mean of a histogram's observations in its unit (mostly seconds); NaN without any."""
    histogram = histogram_increase(samples, key)
    if histogram is not None:
        return histogram.mean
    if key not in SUMMED_HISTOGRAMS:
        return nan
    count = counter_increase(samples, f"{key}_count")
    return counter_increase(samples, f"{key}_sum_s") / count if count > 0 else nan


def missing_figures(samples: Sequence[ServerSample]) -> list[str]:
    """What a verdict needs and the server never reported; everything if there are no samples."""
    return [
        words
        for name, words in REQUIRED_FIGURES.items()
        if all(isnan(getattr(s, name)) for s in samples)
    ]


def _values(samples: Sequence[ServerSample], name: str) -> list[float]:
    values = (float(getattr(sample, name)) for sample in samples)
    return [value for value in values if not isnan(value)]


def _mean(samples: Sequence[ServerSample], name: str) -> float:
    values = _values(samples, name)
    return fsum(values) / len(values) if values else nan


def _max(samples: Sequence[ServerSample], name: str, sign: int = 1) -> float:
    return max((sign * value for value in _values(samples, name)), default=nan)


def _share(samples: Sequence[ServerSample], part: str, whole: str) -> float:
    of = counter_increase(samples, whole)
    return counter_increase(samples, part) / of if of > 0 else nan


def _finished(samples: Sequence[ServerSample]) -> dict[str, int]:
    """Requests that ended, by the server's reason; only reasons that occurred."""
    if len(samples) < 2 or first_counter_reset(samples):  # noqa: PLR2004 - as above
        return {}
    first, last = samples[0].finished, samples[-1].finished
    more = {reason: count - first.get(reason, 0.0) for reason, count in last.items()}
    return {reason: round(count) for reason, count in more.items() if count > 0}
