"""`--otlp`: a run's histograms for an OpenTelemetry collector, by the conventions for GenAI.

In: a run and its result; out: one OTLP request, built and sent by OpenTelemetry's own packages. It
is made at the end, from the requests and gaps that result.json is made of, so that the figures are
the same and nothing is sent while the load lasts. Each level is a data point of its own, over its
measured window.

We are the client, so the names are a client's: `gen_ai.server.*` is for the server itself to say.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import numpy as np
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from harness import __version__
from harness.core.arrays import between
from harness.export.llmd_report import run_id
from harness.export.otlp_endpoint import FROM_ENVIRONMENT
from harness.metrics.latency_figures import blocked_windows, sample_figures
from harness.metrics.metrics import failed_requests
from harness.records.record_table import OK, OUTCOMES
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.core.arrays import Bools, Floats, Ints
    from harness.metrics.result import Level, Result
    from harness.metrics.token_gaps import WindowGaps
    from harness.records.folder_reader import Run

    Attributes = dict[str, str | int | float]

SCOPE: Final = "vllm-harness"
PROVIDER: Final = "vllm"
OPERATIONS: Final = {"chat": "chat", "completions": "text_completion"}  # by our name of an API
# The boundaries that the conventions ask for.
SECONDS: Final = tuple(0.01 * 2**power for power in range(14))  # 0.01 to 81.92
TOKENS: Final = tuple(float(4**power) for power in range(14))  # 1 to 67,108,864
# Buckets only bound a quantile, so those of our levels go along, each with its interval.
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
LATENCIES: Final = ("ttft", "itl", "e2e")
LOGGER: Final = "opentelemetry.exporter.otlp"
_QUERY: Final = re.compile(r"\?\S*")

DURATION: Final = ("gen_ai.client.operation.duration", "s")
FIRST_CHUNK: Final = ("gen_ai.client.operation.time_to_first_chunk", "s")
OUTPUT_CHUNK: Final = ("gen_ai.client.operation.time_per_output_chunk", "s")
TOKEN_USAGE: Final = ("gen_ai.client.token.usage", "{token}")
QUANTILE: Final = ("vllm_harness.latency.quantile", "s")
KNEE: Final = ("vllm_harness.knee", "1")  # in the unit of its attribute


@dataclass(frozen=True, slots=True)
class _Counted:
    """Values and how many there are of each, ascending."""

    values: Floats
    counts: Ints | Floats  # whole numbers

    @classmethod
    def of(cls, values: Floats) -> _Counted:
        return cls(*np.unique(values, return_counts=True))

    def point(
        self, level: Level, attributes: Attributes, bounds: tuple[float, ...]
    ) -> HistogramDataPoint:
        bucket = np.searchsorted(bounds, self.values)  # a bound belongs to the bucket below it
        per_bucket = np.bincount(bucket, self.counts, len(bounds) + 1)
        return HistogramDataPoint(
            attributes=attributes,
            start_time_unix_nano=level.settled_ns,
            time_unix_nano=level.end_ns,
            count=int(self.counts.sum()),
            sum=float((self.values * self.counts).sum()),
            bucket_counts=[int(n) for n in per_bucket],
            explicit_bounds=bounds,
            min=float(self.values[0]),
            max=float(self.values[-1]),
        )


class _Metrics:
    """The data points of a run, level by level."""

    def __init__(self, run: Run, result: Result, gaps: WindowGaps) -> None:
        self._table = run.table
        self._gaps = gaps
        self._common = _common_attributes(run, result)
        self._unit = result.unit
        self._points: dict[tuple[str, str], list[Any]] = {}
        for level in result.levels:
            if level.usable:
                self._add_level(level)
        self._add_knee(result)

    def __iter__(self) -> Iterator[Metric]:
        for (name, unit), points in self._points.items():
            if isinstance(points[0], HistogramDataPoint):
                data: Any = Histogram(points, AggregationTemporality.CUMULATIVE)
            else:
                data = Gauge(points)
            yield Metric(name, None, unit, data)

    def _add_level(self, level: Level) -> None:
        window = (level.settled_ns, level.end_ns)
        of_level = {
            **self._common,
            "vllm_harness.level": level.index,
            "vllm_harness.load": level.load,
            "vllm_harness.load.unit": self._unit,
        }
        self._add(DURATION, level, of_level, _Counted.of(self._seconds("e2e", window)))
        self._add(FIRST_CHUNK, level, of_level, _Counted.of(self._seconds("ttft", window)))
        if gaps := self._gaps.get(window):
            _, counts, means_ns = gaps.histograms["ns"].totals
            self._add(OUTPUT_CHUNK, level, of_level, _Counted(means_ns / SECOND, counts))
        sent = between(self._table.sent_ns, *window)
        self._add_failures(level, of_level, sent)
        self._add_tokens(level, of_level, sent & (self._table.outcome == OK))
        self._add_quantiles(level, of_level)

    def _seconds(self, key: str, window: tuple[int, int]) -> Floats:
        """The finite observations that the level's figures are made of."""
        spans = blocked_windows(self._table, [window])
        seen_ns = sample_figures(self._table, key, spans).seen.ns
        return seen_ns[np.isfinite(seen_ns)] / SECOND

    def _add_failures(self, level: Level, of_level: Attributes, sent: Bools) -> None:
        """A failed request's latencies are infinite here; to the conventions it has a duration."""
        table = self._table
        failed = sent & failed_requests(table)
        duration_s = (table.done_ns - table.begun_ns) / SECOND
        for code in np.unique(table.outcome[failed]).tolist():
            attributes = of_level | {"error.type": str(OUTCOMES[code])}
            chosen = failed & (table.outcome == code)
            self._add(DURATION, level, attributes, _Counted.of(duration_s[chosen]))

    def _add_tokens(self, level: Level, of_level: Attributes, succeeded: Bools) -> None:
        by_type = {"input": self._table.prompt_tokens, "output": self._table.output_tokens}
        for name, tokens in by_type.items():
            known = tokens[succeeded & (tokens >= 0)]  # below 0: the server did not count
            attributes = of_level | {"gen_ai.token.type": name}
            self._add(TOKEN_USAGE, level, attributes, _Counted.of(known.astype(float)), TOKENS)

    def _add_quantiles(self, level: Level, of_level: Attributes) -> None:
        for latency in LATENCIES:
            figures = getattr(level, f"{latency}_ms")
            for name, quantile in QUANTILES.items():
                value_ms, low_ms, high_ms = figures.at(name)
                attributes = of_level | {
                    "vllm_harness.latency": latency,
                    "vllm_harness.quantile": quantile,
                }
                bounds = {"value": value_ms, "low": low_ms, "high": high_ms}
                for bound, ms in bounds.items():
                    labeled = attributes | {"vllm_harness.bound": bound}
                    self._add_number(QUANTILE, level.end_ns, labeled, ms * MS / SECOND)

    def _add_knee(self, result: Result) -> None:
        knee = result.knee
        if knee is None or not result.levels:
            return
        bounds = {"value": knee.estimate, "holds": knee.holds}
        if interval := result.knee_interval:
            bounds |= {"low": interval.low, "high": interval.high}
        end_ns = result.levels[-1].end_ns
        for bound, load in bounds.items():
            if load is not None:
                labeled = self._common | {
                    "vllm_harness.load.unit": self._unit,
                    "vllm_harness.bound": bound,
                }
                self._add_number(KNEE, end_ns, labeled, float(load))

    def _add(
        self,
        metric: tuple[str, str],
        level: Level,
        attributes: Attributes,
        counted: _Counted,
        bounds: tuple[float, ...] = SECONDS,
    ) -> None:
        if len(counted.values):
            point = counted.point(level, attributes, bounds)
            self._points.setdefault(metric, []).append(point)

    def _add_number(
        self, metric: tuple[str, str], at_ns: int, attributes: Attributes, value: float
    ) -> None:
        if isfinite(value):
            point = NumberDataPoint(attributes, at_ns, at_ns, value)
            self._points.setdefault(metric, []).append(point)


def _common_attributes(run: Run, result: Result) -> Attributes:
    """Of every data point."""
    api = run.info["config"]["drive"]["workload"].get("api") or "chat"
    address = urlsplit(result.target.url)
    port = address.port or {"https": 443}.get(address.scheme, 80)
    return {
        "gen_ai.operation.name": OPERATIONS.get(api, api),
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": result.target.model,
        "server.address": address.hostname or "",
        "server.port": port,
    }


def metrics_of(run: Run, result: Result, gaps: WindowGaps) -> MetricsData:
    """What is sent of a run: no address but the server's, no prompt, no command line."""
    ours = Resource.create(
        {
            "service.name": SCOPE,
            "service.version": __version__,
            "service.instance.id": run_id(run.info),
            "vllm_harness.command": result.command,
            "vllm_harness.status": str(result.status),
        }
    )
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES have the last word, as elsewhere.
    resource = ours.merge(OTELResourceDetector().detect())
    scope = InstrumentationScope(SCOPE, __version__)
    scopes = [ScopeMetrics(scope, list(_Metrics(run, result, gaps)), "")]
    return MetricsData([ResourceMetrics(resource, scopes, "")])


def send_metrics(endpoint: str, run: Run, result: Result, gaps: WindowGaps) -> str:
    """Send them; what was sent, or why it was not, in a sentence."""
    metrics = metrics_of(run, result, gaps)
    reason = _Reason()
    logger = logging.getLogger(LOGGER)
    logger.addHandler(reason)
    logger.propagate = False
    try:
        where = None if endpoint == FROM_ENVIRONMENT else endpoint
        exporter = OTLPMetricExporter(endpoint=where)
        done = exporter.export(metrics)
        exporter.shutdown()
    finally:
        logger.removeHandler(reason)
        logger.propagate = True
    if done == MetricExportResult.SUCCESS:
        return f"Metrics of {run.path.name} sent by OTLP: {endpoint}"
    return (
        f"The metrics were not taken by the OTLP endpoint {endpoint} ({reason.text}): expected a "
        f"collector's HTTP receiver; try `vllm-harness report {run.path} --otlp URL`."
    )


class _Reason(logging.Handler):
    """What the exporter says first, without the query of a URL, which may be a key."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or _QUERY.sub("", record.getMessage()).strip(" .")
