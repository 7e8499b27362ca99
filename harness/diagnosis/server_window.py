"""The server's side of one window: means and maxima of gauges, increases of counters.

Increases are between the first and the last scrape in the window. vLLM observes queue,
prefill, decode and e2e when a request ends, but TTFT and ITL when tokens are generated: in a window
of many lifetimes these are the same requests, in a short one they are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import fsum, isnan, nan
from typing import TYPE_CHECKING, Any, Final

from harness.core.typed_json import round_floats
from harness.diagnosis.slots import flat_share
from harness.metrics.level_figures import ServerFigures
from harness.metrics.server_summary import (
    AND_ONE,
    ESTIMATED_RATE,
    INCREASE,
    MAX,
    MEAN,
    MIN,
    OBSERVED,
    P95_BUCKET,
    RATE,
    SHARE,
    summaries,
)
from harness.records.histogram import Histogram, histogram_delta, quantile_bounds
from harness.records.samples import SUMMED_HISTOGRAMS, ServerSample
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.metrics.evidence import Window


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
    # The sum over replicas may have risen although one of them began anew.
    for name in sorted(before.replicas.keys() & after.replicas.keys()):
        if fell := counter_that_fell(before.replicas[name], after.replicas[name]):
            return f"{fell} ({name})"
    for name in COUNTERS:
        old = getattr(before, name)
        new = getattr(after, name)
        if new < old:
            words = name.removesuffix("_total").replace("_", " ")
            return f"{words} fell from {old:g} to {new:g}"
    for key, histogram in after.histograms.items():
        known = before.histograms.get(key)
        if known is not None and histogram.count < known.count:
            return f"the count of {key} fell from {known.count:g} to {histogram.count:g}"
    if after.started_s > before.started_s + 1:  # seconds: some servers round
        return f"its process started {after.started_s - before.started_s:.0f} s later than before"
    return ""


def first_counter_reset(samples: Sequence[ServerSample]) -> str:
    """The first decrease among samples in time order, in words; "": none."""
    for before, after in pairwise(samples):
        if fell := counter_that_fell(before, after):
            return fell
    return ""


def reset_sentence(window: Window, samples: Sequence[ServerSample]) -> str:
    """Why the level must not be used, or "": by the scrapes from the last one before it."""
    until_end = [sample for sample in samples if sample.at_ns <= window.end_ns]
    before_window = [sample for sample in until_end if sample.at_ns < window.settled_ns]
    first = max(len(before_window) - 1, 0)
    reset = first_counter_reset(until_end[first:])
    if not reset:
        return ""
    return (
        f"between two scrapes of the server {reset}: it was restarted, or a load balancer answers "
        "/metrics from several servers; look at its log, or give each server's URL with "
        "--metrics-url"
    )


DECIMALS: Final = 6
MIN_BEYOND_QUANTILE: Final = 10  # observations needed beyond a quantile
MAX_SKEW: Final = 1.5  # load of a replica, as a multiple of an even share; as far below it, too
MIN_IN_FLIGHT: Final = 2  # requests for each replica; with fewer, chance decides
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


def server_figures(samples: Sequence[ServerSample]) -> ServerFigures:
    """Of the samples of a window."""
    figures = {}
    for name, row in summaries(ServerFigures).items():
        compute = HOW[row.how]
        figures[name] = compute(samples, *row.keys)
    computed = ServerFigures(
        samples=len(samples),
        running_flat_share=flat_share(samples),
        prompt_tokens_per_s=_computed_rate(samples),
        finished=_finished(samples),
        **figures,
    )
    return round_floats(computed, DECIMALS)


def _estimated_rate(samples: Sequence[ServerSample], *names: str) -> float:
    """Of counters that vLLM writes but does not count without --enable-mfu-metrics: NaN then."""
    return fsum(counter_rate(samples, name) for name in names) or nan


def _computed_rate(samples: Sequence[ServerSample]) -> float:
    """Prompt tokens a second without those that were cached, where the server tells them apart."""
    computed = counter_rate(samples, "computed_prompt_tokens_total")
    if isnan(computed):
        return counter_rate(samples, "prompt_tokens_total")
    return computed


def replica_figures(samples: Sequence[ServerSample]) -> dict[str, ServerFigures]:
    """Of each replica, by its URL, from the samples that have it; {} if there is one server."""
    by_replica: dict[str, list[ServerSample]] = {}
    for sample in samples:
        for name, own_sample in sample.replicas.items():
            by_replica.setdefault(name, []).append(own_sample)
    return {name: server_figures(own_samples) for name, own_samples in by_replica.items()}


def load_shares(replicas: Mapping[str, ServerFigures]) -> dict[str, float]:
    """Each one's share of the requests in flight, the busiest first; {} without any."""
    in_flight = {name: _in_flight(figures) for name, figures in replicas.items()}
    total = fsum(in_flight.values())
    if not total > 0:
        return {}
    shares = {name: requests / total for name, requests in in_flight.items()}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _in_flight(figures: ServerFigures) -> float:
    return figures.running_mean + figures.waiting_mean


def skew_sentence(replicas: Mapping[str, ServerFigures]) -> str:
    """The busiest and the idlest replica, if one has half as much again, or half, of its share."""
    n = len(replicas)
    shares = load_shares(replicas)
    # With a request or two for each, a balancer cannot do better.
    in_flight = fsum(_in_flight(figures) for figures in replicas.values())
    if in_flight < MIN_IN_FLIGHT * n or not shares:
        return ""
    busiest_first = list(shares)
    busiest = busiest_first[0]
    idlest = busiest_first[-1]
    high = shares[busiest]
    low = shares[idlest]
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
    first = getattr(samples[0], name)
    last = getattr(samples[-1], name)
    return float(last - first)


def counter_rate(samples: Sequence[ServerSample], name: str) -> float:
    """Increase of a counter per second between the first and the last sample."""
    if len(samples) < 2:  # noqa: PLR2004 - as above
        return nan
    span_ns = max(samples[-1].at_ns - samples[0].at_ns, 1)
    return counter_increase(samples, name) * SECOND / span_ns


def histogram_increase(samples: Sequence[ServerSample], key: str) -> Histogram | None:
    """The observations of one histogram between the first and the last sample."""
    if len(samples) < 2:  # noqa: PLR2004 - as above
        return None
    first = samples[0].histograms.get(key)
    last = samples[-1].histograms.get(key)
    if first is None or last is None:
        return None
    return histogram_delta(first, last)


def quantile_bucket(histogram: Histogram | None, q: float) -> tuple[float, float] | None:
    """The bucket that contains a quantile; None with too few observations beyond it."""
    if histogram is None or histogram.count * (1 - q) < MIN_BEYOND_QUANTILE:
        return None
    return quantile_bounds(histogram, q)


def _p95_bucket(samples: Sequence[ServerSample], key: str) -> tuple[float, float] | None:
    """Only of TTFT and ITL: the others' buckets are too coarse, the first one ends at 0.3 s."""
    return quantile_bucket(histogram_increase(samples, key), 0.95)


def histogram_mean_s(samples: Sequence[ServerSample], key: str) -> float:
    """Mean of a histogram's observations in its unit (mostly seconds); NaN without any."""
    histogram = histogram_increase(samples, key)
    if histogram is not None:
        return histogram.mean
    # Most samples in memory are without buckets, 2 kB each instead of 19 (decision 11), but have
    # the sums and counts of these histograms.
    if key not in SUMMED_HISTOGRAMS:
        return nan
    count = counter_increase(samples, f"{key}_count")
    if not count > 0:
        return nan
    return counter_increase(samples, f"{key}_sum_s") / count


def missing_figures(samples: Sequence[ServerSample]) -> list[str]:
    """What a verdict needs and the server never reported; everything if there are no samples."""
    return [words for name, words in REQUIRED_FIGURES.items() if not _values(samples, name)]


def _values(samples: Sequence[ServerSample], name: str) -> list[float]:
    """Of a gauge or a counter, where the server reported it."""
    values = [float(getattr(sample, name)) for sample in samples]
    return [value for value in values if not isnan(value)]


def _mean(samples: Sequence[ServerSample], name: str) -> float:
    values = _values(samples, name)
    return fsum(values) / len(values) if values else nan


def _max(samples: Sequence[ServerSample], name: str) -> float:
    return max(_values(samples, name), default=nan)


def _min(samples: Sequence[ServerSample], name: str) -> float:
    return min(_values(samples, name), default=nan)


def _share(samples: Sequence[ServerSample], part: str, total: str) -> float:
    """One counter's increase over another's."""
    increase = counter_increase(samples, total)
    if not increase > 0:
        return nan
    return counter_increase(samples, part) / increase


def _share_and_one(samples: Sequence[ServerSample], part: str, total: str) -> float:
    """The same, and one: of the tokens of a draft, that which follows those accepted."""
    return 1 + _share(samples, part, total)


def _finished(samples: Sequence[ServerSample]) -> dict[str, int]:
    """Requests that ended, by the server's reason; only reasons that occurred."""
    if len(samples) < 2 or first_counter_reset(samples):  # noqa: PLR2004 - as above
        return {}
    before = samples[0].finished
    increases = {}
    for reason, count in samples[-1].finished.items():
        increase = count - before.get(reason, 0.0)
        if increase > 0:
            increases[reason] = round(increase)
    return increases


# How a field of ServerFigures is computed from the samples, and the keys that it names.
HOW: Final[dict[str, Callable[..., Any]]] = {
    MEAN: _mean,
    MAX: _max,
    MIN: _min,
    OBSERVED: histogram_mean_s,
    P95_BUCKET: _p95_bucket,
    INCREASE: counter_increase,
    RATE: counter_rate,
    ESTIMATED_RATE: _estimated_rate,
    SHARE: _share,
    AND_ONE: _share_and_one,
}
