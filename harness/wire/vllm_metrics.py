"""Reads vLLM's /metrics: text in, a ServerSample out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from math import fsum, inf, isnan, nan
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from harness.records.histogram import Histogram, sum_histograms
from harness.records.samples import ServerSample, summed_fields
from harness.wire.prometheus_text import MetricSample, parse_metrics
from harness.wire.vllm_series import SERIES, SERIES_NAMES, VLLM_PREFIXES

if TYPE_CHECKING:
    from harness.records.series import Series

Lines = Mapping[str, list[MetricSample]]
ENGINE_LABEL: Final = "engine"  # of the series of one of several engines behind an API server


def server_sample(
    text: bytes | str, at_ns: int, took_ns: float = nan, model: str = ""
) -> ServerSample | None:
    """Return the sample of one scrape; None if it contains no series of vLLM's.

    `at_ns`: the middle of the exchange; `took_ns`: its duration. Of a page of several models, as
    routers have it, the lines of `model` count; "": all. Raises ValueError with a sentence for a
    histogram bucket whose bound is not a number.
    """
    samples = _without_repeats(_of_model(parse_metrics(text, SERIES_NAMES), model))
    if not any(sample.name.startswith(VLLM_PREFIXES) for sample in samples):
        return None
    whole = _sample_of(samples, at_ns, took_ns)
    engines = {sample.labels.get(ENGINE_LABEL, "") for sample in samples} - {""}
    if len(engines) < 2:  # noqa: PLR2004 - several
        return whole
    replicas = {}
    for engine in sorted(engines, key=_natural):
        own = [sample for sample in samples if sample.labels.get(ENGINE_LABEL) == engine]
        replicas[f"{ENGINE_LABEL} {engine}"] = replace(_sample_of(own, at_ns), histograms={})
    return replace(whole, replicas=replicas)


def _natural(engine: str) -> tuple[int, str]:
    """Engine 10 comes after engine 9."""
    return len(engine), engine


def _sample_of(samples: Iterable[MetricSample], at_ns: int, took_ns: float = nan) -> ServerSample:
    """All of these lines as one sample."""
    lines: defaultdict[str, list[MetricSample]] = defaultdict(list)
    for sample in samples:
        lines[sample.name].append(sample)
    values: dict[str, Any] = {}
    histograms: dict[str, Histogram] = {}
    for series in SERIES:
        if series.kind == "histogram":
            histogram = _histogram(series, lines)
            if histogram is not None:
                histograms[series.key] = histogram
        else:
            value = _by_reason(series, lines) if series.by else _number(series, lines)
            if value is not None:
                values[series.key] = value
    values |= summed_fields(histograms)
    return ServerSample(at_ns, **values, took_ns=took_ns, histograms=histograms)


def _of_model(samples: list[MetricSample], model: str) -> list[MetricSample]:
    # The only model of a server may be called otherwise: by an alias, or a LoRA adapter of it.
    models = {_model(sample) for sample in samples} - {""}
    if not model or len(models) < 2:  # noqa: PLR2004 - several
        return samples
    return [sample for sample in samples if _model(sample) in ("", model)]


def _model(sample: MetricSample) -> str:
    return sample.labels.get("model_name", "")


def _without_repeats(samples: Iterable[MetricSample]) -> list[MetricSample]:
    # A gateway may write a line twice; of two values the larger is the newer one of a counter.
    kept: dict[object, MetricSample] = {}
    for sample in samples:
        key = (sample.name, frozenset(sample.labels.items()))
        before = kept.get(key)
        if before is None or sample.value > before.value:
            kept[key] = sample
    return list(kept.values())


def _samples(series: Series, lines: Lines) -> list[MetricSample]:
    # By the newest name that the page has. Some versions write a series under its old and its new
    # name at once; adding both would count it twice.
    label, value = series.where
    for name in chain.from_iterable(series.names()):
        if name not in lines:
            continue
        samples = lines[name]
        if label:
            samples = [sample for sample in samples if sample.labels.get(label) == value]
        return samples
    return []


def _number(series: Series, lines: Lines) -> float | None:
    samples = _samples(series, lines)
    if series.kind == "gauge":
        values = _newest_process(samples)
    else:
        values = [sample.value for sample in samples]
    return series.over(values) if values else None


def _newest_process(samples: Iterable[MetricSample]) -> list[float]:
    # With several API servers, vLLM 0.9.2 to 0.10 wrote some gauges once per process (label `pid`),
    # all but one of them stale. Nothing tells which one, so the largest stands for the engine.
    values: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        labels = {name: value for name, value in sample.labels.items() if name != "pid"}
        engine = tuple(sorted(labels.items()))
        largest = values.get(engine, -inf)
        values[engine] = max(sample.value, largest)
    return list(values.values())


def _by_reason(series: Series, lines: Lines) -> dict[str, float] | None:
    split: defaultdict[str, list[float]] = defaultdict(list)
    for sample in _samples(series, lines):
        split[sample.labels.get(series.by, "")].append(sample.value)
    return {reason: fsum(values) for reason, values in split.items()} or None


def _histogram(series: Series, lines: Lines) -> Histogram | None:
    """Return the sum over all engines, on the buckets that they share."""
    for names in series.names():
        # for each way to write the name: its `_bucket`, `_sum` and `_count`
        for bucket_name, sum_name in zip(names[0::3], names[1::3], strict=True):
            if bucket_name not in lines:
                continue
            buckets = sum_histograms(_by_engine(lines[bucket_name]))
            # Without a line of it the sum is not known: 0 would say that nothing took any time.
            total = nan
            if sum_name in lines:
                total = fsum(sample.value for sample in lines[sum_name])
            return Histogram(buckets.bounds, buckets.counts, total)
    return None


def _by_engine(buckets: Iterable[MetricSample]) -> list[Histogram]:
    """Return the buckets of each engine, without a sum; an engine is what all labels but `le` say.

    Raises ValueError for a bound that is not a number.
    """
    engines: defaultdict[Any, dict[float, float]] = defaultdict(dict)
    for sample in buckets:
        labels = dict(sample.labels)
        bound = _bound(sample.name, labels.pop("le", "+Inf"))
        engine = tuple(sorted(labels.items()))
        engines[engine][bound] = sample.value
    return [_cumulative(counts) for counts in engines.values()]


def _bound(name: str, le: str) -> float:
    try:
        bound = float(le)
    except ValueError:
        bound = nan
    if isnan(bound):  # a NaN has no place in the order of the buckets
        raise ValueError(f"{name} has a bucket le={le!r}, which is not a number")
    return bound


def _cumulative(counts: Mapping[float, float]) -> Histogram:
    bounds = tuple(sorted(counts))
    return Histogram(bounds, tuple(counts[bound] for bound in bounds), 0.0)


def sum_samples(replicas: Mapping[str, ServerSample]) -> ServerSample:
    """Several replicas as one server; what one of them does not report is not known.

    Counters, requests and histograms add up, as those of several engines do. What a process can use
    at most (its CPU) is a mean: a sum would look like one process at its limit.
    """
    samples = list(replicas.values())
    if len(samples) == 1:
        return samples[0]
    begun_ns = min(sample.at_ns - round(sample.took_ns / 2) for sample in samples)
    ended_ns = max(sample.at_ns + round(sample.took_ns / 2) for sample in samples)
    numbers = _sum_numbers(samples)
    numbers["took_ns"] = ended_ns - begun_ns
    finished: Counter[str] = Counter()
    for sample in samples:
        finished += Counter(sample.finished)
    parts: dict[str, ServerSample] = {}
    for name, sample in replicas.items():
        if sample.replicas:  # a server with several engines: they are told apart
            parts |= {f"{name} {engine}": own for engine, own in sample.replicas.items()}
        else:
            parts[name] = replace(sample, histograms={})
    return ServerSample(
        (begun_ns + ended_ns) // 2,
        **numbers,
        finished=finished,
        histograms=_sum_shared_histograms(samples),
        replicas=parts,
    )


def _sum_numbers(samples: Sequence[ServerSample]) -> dict[str, Any]:
    over = {series.key: series.over for series in SERIES}
    over |= {"api_cpu_s": fmean, "api_threads": fmean}
    numbers: dict[str, Any] = {}
    for field in fields(ServerSample):
        if not isinstance(field.default, float):  # what is required, a mapping, other servers
            continue
        values = [float(getattr(sample, field.name)) for sample in samples]
        if any(map(isnan, values)):
            numbers[field.name] = nan
        else:
            numbers[field.name] = over.get(field.name, fsum)(values)
    return numbers


def _sum_shared_histograms(samples: Sequence[ServerSample]) -> dict[str, Histogram]:
    shared = set.intersection(*(set(sample.histograms) for sample in samples))
    summed = {}
    for key in sorted(shared):
        own = [sample.histograms[key] for sample in samples]
        summed[key] = sum_histograms(own)
    return summed
