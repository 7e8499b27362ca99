"""The text of a vLLM's /metrics in, a ServerSample or the cache's configuration out."""

from __future__ import annotations

from collections import defaultdict
from math import fsum, inf, nan
from typing import TYPE_CHECKING, Any, Final

from harness.measure.histogram import Histogram, added
from harness.measure.samples import ServerSample, sums
from harness.wire.prometheus_text import parse
from harness.wire.vllm_series import CACHE_CONFIG, SERIES, WANTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from harness.wire.prometheus_text import Sample
    from harness.wire.vllm_series import Series

    Lines = Mapping[str, list[Sample]]

OWN: Final = ("vllm:", "vllm_")  # process_* alone is any server's


def server_sample(text: bytes | str, at_ns: int, took_ns: float = nan) -> ServerSample | None:
    """The sample of one scrape; None when no series of vLLM's is in it.

    `at_ns` is the middle of the exchange, `took_ns` how long it was.
    """
    lines: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in parse(text, WANTED):
        lines[sample.name].append(sample)
    if not any(name.startswith(OWN) for name in lines):
        return None
    found: dict[str, Any] = {}
    histograms: dict[str, Histogram] = {}
    for series in SERIES:
        if series.kind != "histogram":
            value = _by_reason(series, lines) if series.by else _number(series, lines)
            found |= {series.key: value} if value is not None else {}
        elif (histogram := _histogram(series, lines)) is not None:
            histograms[series.key] = histogram
    found |= sums(histograms)
    return ServerSample(at_ns, **found, took_ns=took_ns, histograms=histograms)


def _samples(series: Series, lines: Lines) -> list[Sample]:
    """Those of the newest spelling that the server has; a server that gives two counts once."""
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


def _newest_process(samples: Iterable[Sample]) -> list[float]:
    """One value per engine.

    With several API servers, 0.9.2 to 0.10 gave some gauges once per process (label `pid`), all but
    one of them stale; which one is not said, so the largest stands for the engine.
    """
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
    """All engines together, on the buckets that they share."""
    for names in series.names():
        for bucket, total in ((names[0], names[1]), (names[3], names[4])):
            if bucket in lines:
                engines: defaultdict[Any, dict[float, float]] = defaultdict(dict)
                for sample in lines[bucket]:
                    labels = dict(sample.labels)
                    bound = float(labels.pop("le", "inf"))
                    engines[tuple(sorted(labels.items()))][bound] = sample.value
                parts = [_cumulative(counts) for counts in engines.values()]
                whole = added(parts)
                return Histogram(whole.bounds, whole.counts, fsum(s.value for s in lines[total]))
    return None


def _cumulative(counts: Mapping[float, float]) -> Histogram:
    bounds = tuple(sorted(counts))
    return Histogram(bounds, tuple(counts[bound] for bound in bounds), 0.0)


def cache_config(text: bytes | str) -> list[dict[str, str]]:
    """What each engine says of its KV cache: labels of `vllm:cache_config_info`, None left out."""
    found = parse(text, CACHE_CONFIG)
    said = [{k: v for k, v in s.labels.items() if v != "None" and k[:1] != "_"} for s in found]
    return sorted(said, key=lambda labels: int(labels.get("engine") or 0))
