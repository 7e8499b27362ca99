"""Reads vLLM's /metrics: text in, a ServerSample out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, replace
from math import fsum, inf, isnan, nan
from statistics import fmean
from typing import Any

from harness.records.histogram import Histogram, sum_histograms
from harness.records.samples import ServerSample, summed_fields
from harness.wire.prometheus_text import MetricSample, parse_metrics
from harness.wire.vllm_series import SERIES, SERIES_NAMES, VLLM_PREFIXES, Series

Lines = Mapping[str, list[MetricSample]]


def server_sample(
    text: bytes | str, at_ns: int, took_ns: float = nan, model: str = ""
) -> ServerSample | None:
    """Return the sample of one scrape; None if it contains no series of vLLM's.

    `at_ns`: the middle of the exchange; `took_ns`: its duration. Of a page of several models, as
    routers have it, the lines of `model` count; "": all. Raises ValueError with a sentence for a
    histogram bucket whose bound is not a number.
    """
    lines: defaultdict[str, list[MetricSample]] = defaultdict(list)
    for sample in _each_once(_of_model(parse_metrics(text, SERIES_NAMES), model)):
        lines[sample.name].append(sample)
    if not any(name.startswith(VLLM_PREFIXES) for name in lines):
        return None
    found: dict[str, Any] = {}
    histograms: dict[str, Histogram] = {}
    for series in SERIES:
        if series.kind != "histogram":
            value = _by_reason(series, lines) if series.by else _number(series, lines)
            found |= {series.key: value} if value is not None else {}
        elif (histogram := _histogram(series, lines)) is not None:
            histograms[series.key] = histogram
    found |= summed_fields(histograms)
    return ServerSample(at_ns, **found, took_ns=took_ns, histograms=histograms)


def _of_model(samples: list[MetricSample], model: str) -> list[MetricSample]:
    # The only model of a server may be called otherwise: by an alias, or a LoRA adapter of it.
    named = [sample.labels.get("model_name", "") for sample in samples]
    if not model or len({name for name in named if name}) < 2:  # noqa: PLR2004 - several
        return samples
    return [s for s, name in zip(samples, named, strict=True) if name in ("", model)]


def _each_once(samples: Iterable[MetricSample]) -> list[MetricSample]:
    # A gateway may write a line twice; of two values the larger is the newer one of a counter.
    found: dict[object, MetricSample] = {}
    for sample in samples:
        key = sample.name, frozenset(sample.labels.items())
        before = found.get(key)
        if before is None or sample.value > before.value:
            found[key] = sample
    return list(found.values())


def _samples(series: Series, lines: Lines) -> list[MetricSample]:
    # By the newest name that the page has. Some versions write a series under its old and its new
    # name at once; adding both would count it twice.
    label, value = series.where
    for names in series.names():
        for name in names:
            if name in lines:
                return [s for s in lines[name] if not label or s.labels.get(label) == value]
    return []


def _number(series: Series, lines: Lines) -> float | None:
    samples = _samples(series, lines)
    values = _newest_process(samples) if series.kind == "gauge" else [s.value for s in samples]
    return series.over(values) if values else None


def _newest_process(samples: Iterable[MetricSample]) -> list[float]:
    # With several API servers, vLLM 0.9.2 to 0.10 wrote some gauges once per process (label `pid`),
    # all but one of them stale. Nothing tells which one, so the largest stands for the engine.
    values: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        engine = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "pid"))
        values[engine] = max(sample.value, values.get(engine, -inf))
    return list(values.values())


def _by_reason(series: Series, lines: Lines) -> dict[str, float] | None:
    split: defaultdict[str, list[float]] = defaultdict(list)
    for sample in _samples(series, lines):
        split[sample.labels.get(series.by, "")].append(sample.value)
    return {reason: fsum(values) for reason, values in split.items()} or None


def _histogram(series: Series, lines: Lines) -> Histogram | None:
    """Return the sum over all engines, on the buckets that they share."""
    for names in series.names():
        for bucket, total in zip(names[0::3], names[1::3], strict=True):
            if bucket in lines:
                engines: defaultdict[Any, dict[float, float]] = defaultdict(dict)
                for sample in lines[bucket]:
                    labels = dict(sample.labels)
                    bound = _bound(bucket, labels.pop("le", "+Inf"))
                    engines[tuple(sorted(labels.items()))][bound] = sample.value
                parts = [_cumulative(counts) for counts in engines.values()]
                whole = sum_histograms(parts)
                return Histogram(whole.bounds, whole.counts, fsum(s.value for s in lines[total]))
    return None


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
    each = list(replicas.values())
    if len(each) == 1:
        return each[0]
    over = {one.key: one.over for one in SERIES} | {"api_cpu_s": fmean, "api_threads": fmean}
    found: dict[str, Any] = {}
    for name in (f.name for f in fields(ServerSample) if f.default is not MISSING):
        values = [float(getattr(one, name)) for one in each]
        found[name] = nan if any(map(isnan, values)) else over.get(name, fsum)(values)
    begun = min(one.at_ns - round(one.took_ns / 2) for one in each)
    ended = max(one.at_ns + round(one.took_ns / 2) for one in each)
    shared = set.intersection(*(set(one.histograms) for one in each))
    return ServerSample(
        (begun + ended) // 2,
        **found | {"took_ns": ended - begun},
        finished=sum((Counter(one.finished) for one in each), Counter()),
        histograms={key: sum_histograms([one.histograms[key] for one in each]) for key in shared},
        replicas={name: replace(one, histograms={}) for name, one in replicas.items()},
    )
