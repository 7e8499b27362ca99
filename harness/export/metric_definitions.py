"""Every metric that we expose, from metrics.csv; pages and docs/exporter.md are generated from it.

Names: prefix `harness_`, base units, counters end in `_total`. Label values are bounded: GPUs,
processes, SLOs and enumerations; never a request, a prompt or the number of a level.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import inf, isnan
from typing import Any, Final

from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from harness.metrics.metrics import GAPS, HISTOGRAMS
from harness.records.histogram import Histogram
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
    rows = [row for row in _ROWS if row["of"] == of]
    return tuple(
        MetricDefinition(
            row["key"],
            "_".join(filter(None, ("harness", row["key"], row["unit"], SUFFIX.get(row["kind"])))),
            row["kind"],
            row["help"],
            tuple(row["labels"].split()),
        )
        for row in rows
    )


TARGET: Final = _metrics("target")
GPU: Final = _metrics("gpu")
RUN: Final = (
    *_metrics("load"),
    *(
        MetricDefinition(
            key,
            row.prometheus,
            "histogram",
            f"{row.title} of each {'gap' if key in GAPS else 'request'}. {row.counted}",
        )
        for key, row in HISTOGRAMS.items()
    ),
    *_metrics("results"),
)
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
            found = self.values.get(row.key)
            if found is None:
                continue
            family = FAMILIES[row.kind](row.name, row.help, labels=row.labels)
            for labels, value in (found if row.labels else {(): found}).items():
                if isinstance(value, Histogram):
                    bounds = ("+Inf" if bound == inf else str(bound) for bound in value.bounds)
                    buckets = list(zip(bounds, value.counts, strict=True))
                    family.add_metric(labels, buckets, value.sum)
                elif not isnan(value):
                    family.add_metric(labels, value)
            if family.samples:
                yield family


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
