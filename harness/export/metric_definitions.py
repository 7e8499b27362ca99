"""Every metric that we expose; pages and docs/exporter.md are generated from these.

They are the rows of metrics.csv, the latencies of METRICS, and each field of ServerSample that is
declared with `exported`.

Names: prefix `harness_`, base units, counters end in `_total`. Label values are bounded: GPUs,
processes, SLOs and enumerations; never a request, a prompt or the number of a level.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import inf, isnan
from typing import Any, Final

from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from harness.metrics.metrics import GAPS, HISTOGRAMS
from harness.records.histogram import Histogram
from harness.records.samples import ServerSample
from harness.records.series import series_of
from harness.wire.vllm_series import SERIES

# key -> a number or a histogram, or a mapping of label values to these
Values = dict[str, Any]

FAMILIES: Final[dict[str, Any]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}
SUFFIX: Final = {"counter": "total"}


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """One metric. Its key is its name without prefix and unit."""

    key: str
    name: str
    kind: str  # of FAMILIES
    help: str
    labels: tuple[str, ...] = ()


with (files(__package__) / "metrics.csv").open() as _file:
    _ROWS: Final = list(csv.DictReader(_file))


def _metrics(of: str) -> tuple[MetricDefinition, ...]:
    """Those rows of metrics.csv."""
    return tuple(_metric(row) for row in _ROWS if row["of"] == of)


def _metric(row: Mapping[str, str]) -> MetricDefinition:
    name = _name(row["key"], row["unit"], row["kind"])
    labels = tuple(row["labels"].split())
    return MetricDefinition(row["key"], name, row["kind"], row["help"], labels)


def _name(key: str, unit: str, kind: str) -> str:
    parts = ("harness", key, unit, SUFFIX.get(kind))
    return "_".join(part for part in parts if part)


def _sample_metrics() -> dict[str, MetricDefinition]:
    metrics = {}
    for row in series_of(ServerSample):
        exported = row.exported
        if exported is not None:
            name = _name(exported.key, exported.unit, row.kind)
            words = exported.help or f"{row.words[0].upper()}{row.words[1:]}."
            metrics[row.key] = MetricDefinition(exported.key, name, row.kind, words)
    return metrics


def _latency_metrics() -> tuple[MetricDefinition, ...]:
    metrics = []
    for key, row in HISTOGRAMS.items():
        counted_once = "gap" if key in GAPS else "request"
        words = f"{row.title} of each {counted_once}. {row.counted}"
        metrics.append(MetricDefinition(key, row.prometheus, "histogram", words))
    return tuple(metrics)


OF_SAMPLE: Final = _sample_metrics()  # by the field of ServerSample that each has
TARGET: Final = (*_metrics("target"), *OF_SAMPLE.values())
GPU: Final = _metrics("gpu")
RUN: Final = (*_metrics("load"), *_latency_metrics(), *_metrics("results"))
METRIC_DEFINITIONS: Final = {
    "the exporter": (*TARGET, *GPU),
    "a run": RUN,
}


@dataclass(frozen=True, slots=True)
class _Page:
    """What prometheus_client collects from: the rows that have a value, in their order."""

    # A NaN means unknown, and gets no line: a query then returns nothing instead of a NaN, which
    # would turn every sum that contains it into a NaN.

    rows: Sequence[MetricDefinition]
    values: Values

    def collect(self) -> Iterator[Metric]:
        for row in self.rows:
            values = self.values.get(row.key)
            if values is None:
                continue
            if not row.labels:
                values = {(): values}
            family = FAMILIES[row.kind](row.name, row.help, labels=row.labels)
            for labels, value in values.items():
                if isinstance(value, Histogram):
                    family.add_metric(labels, _buckets(value), value.sum)
                elif not isnan(value):
                    family.add_metric(labels, value)
            if family.samples:
                yield family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = ["+Inf" if bound == inf else str(bound) for bound in histogram.bounds]
    return list(zip(bounds, histogram.counts, strict=True))


def render_metrics(rows: Sequence[MetricDefinition], values: Values) -> bytes:
    return generate_latest(_Page(rows, values))


# PromQL for alerts, recording rules and panels: `back` is the range of a rate (`1m`), `by` the
# labels that a sum keeps.
HARNESS_SERIES: Final = {row.key: row.name for rows in METRIC_DEFINITIONS.values() for row in rows}
VLLM_SERIES: Final = {row.key: row for row in SERIES}
REPLICA: Final = "job, instance, model_name"


def series_names(key: str) -> list[str]:
    """Return vLLM's names of a series, the newest first."""
    return [spelling.name for spelling in VLLM_SERIES[key].spellings]


def newest_name(key: str) -> str:
    return series_names(key)[0]


def rate(series: str, back: str, by: str) -> str:
    """Return the rate per second, summed over all labels but `by`."""
    return f"sum by ({by}) (rate({series}[{back}]))"


def quantile(q: float, buckets: str) -> str:
    """Return the quantile as Prometheus estimates it, interpolated within a bucket."""
    return f"histogram_quantile({q}, {buckets})"


def quantile_of(q: float, histogram: str, back: str, by: str) -> str:
    return quantile(q, rate(f"{histogram}_bucket", back, f"le, {by}"))


def finite_mean(key: str, part: Callable[[str], str]) -> str:
    """Return the mean of the finite values of a run's histogram; `part`: of its `_sum`, ..."""
    # Failures are infinite: our `_sum` leaves them out but `_count` does not, so the divisor is the
    # bucket with the largest finite bound.
    finite = f'_bucket{{le="{HISTOGRAMS[key].buckets_s[-2]}"}}'
    return f"{part('_sum')} / {part(finite)}"
