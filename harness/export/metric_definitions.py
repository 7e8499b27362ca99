"""EXPORTED: every metric that we expose; pages and docs/exporter.md are generated from it.

Names: prefix `harness_`, base units, counters end in `_total`. Label values are bounded: GPUs,
processes, SLOs and enumerations; never a request, a prompt or the number of a level.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from harness.measure.histogram import Histogram
from harness.measure.metrics import GAPS, HISTOGRAMS
from harness.wire.vllm_series import SERIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    # key -> a number or a histogram, or a mapping of label values to these
    Values = dict[str, Any]

FAMILIES: Final[dict[str, Any]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """One metric. Its key is its name without prefix and unit."""

    key: str
    name: str
    kind: str  # of FAMILIES
    help: str
    labels: tuple[str, ...] = ()


def _gauge(key: str, unit: str, text: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(key, f"harness_{key}{unit and '_'}{unit}", "gauge", text, labels)


def _counter(key: str, unit: str, text: str, *labels: str) -> MetricDefinition:
    name = f"harness_{key}{unit and '_'}{unit}_total"
    return MetricDefinition(key, name, "counter", text, labels)


TARGET: Final = (
    _gauge("target_up", "", "1 while the target answers /metrics with vLLM's metrics, else 0; "
           "then the target's other metrics are absent."),
    _gauge("target_info", "", "Always 1. The target's HOST:PORT, which is Prometheus' `instance` "
           "by default.", "target"),
    _gauge("target_sample_age", "seconds", "Age of the target's metrics on this page."),
    _gauge("target_scrape_duration", "seconds", "Duration of the target's last /metrics."),
    _gauge("server_kv_tokens", "", "Capacity of the KV cache in tokens, all engines together."),
    _gauge("server_kv_free_tokens", "", "Free tokens of the KV cache."),
    _gauge("server_max_num_seqs", "", "Slots (max_num_seqs), all engines together: given, read "
           "from the server, or inferred from the requests running while others waited.", "source"),
    _gauge("server_slots_free", "", "Free slots."),
    _gauge("server_ttft_mean", "seconds", "The server's own mean TTFT over the last minute."),
    _gauge("server_ttft_part_mean", "seconds", "Its parts: queue and prefill of the requests that "
           "ended in that minute, and the rest (tokenizing, front end, IPC), which may be negative "
           "while the load changes.", "part"),
    _counter("engine_cpu", "seconds", "CPU time of the engine core processes, if they run on this "
             "machine."),
)  # fmt: skip
GPU: Final = (
    _gauge("gpu_info", "", "Always 1, for each GPU; `uuid` is the beginning of its UUID.",
           "gpu", "name", "uuid", "driver"),
    _gauge("gpu_sample_age", "seconds", "Age of the GPU readings on this page."),
    _gauge("gpu_utilization", "ratio", "Share of the time in which any kernel ran.", "gpu"),
    _gauge("gpu_memory_utilization", "ratio", "Share of the time in which memory was read or "
           "written.", "gpu"),
    _gauge("gpu_memory_used", "bytes", "Memory in use.", "gpu"),
    _gauge("gpu_memory", "bytes", "Total memory.", "gpu"),
    _gauge("gpu_power", "watts", "Power draw.", "gpu"),
    _counter("gpu_energy", "joules", "Energy since the driver was loaded.", "gpu"),
    _gauge("gpu_sm_clock", "hertz", "Clock of the streaming multiprocessors.", "gpu"),
    _gauge("gpu_memory_clock", "hertz", "Clock of the memory.", "gpu"),
    _gauge("gpu_temperature", "celsius", "Temperature of the GPU.", "gpu"),
    _gauge("gpu_pcie_receive", "bytes_per_second", "PCIe traffic to the GPU between the last two "
           "readings.", "gpu"),
    _gauge("gpu_pcie_transmit", "bytes_per_second", "PCIe traffic from the GPU.", "gpu"),
    _gauge("gpu_throttled", "", "1 while the clocks are throttled for this reason.",
           "gpu", "reason"),
)  # fmt: skip
RUN: Final = (
    _gauge("run_info", "", "Always 1. The kind of run (knee, run, sweep, drill or locust), its "
           "workload, its name (that of its folder), and the model and target that it loads.",
           "kind", "workload", "run", "model", "target"),
    _gauge("users_target", "", "Target number of users."),
    _gauge("users_running", "", "Users running, including those that finish their last request."),
    _gauge("rate_target", "per_second", "Target rate of requests, in an open loop, where there are "
           "no users."),
    _gauge("in_flight", "", "Requests in flight, in an open loop."),
    _gauge("level", "", "Number of the current level, from 1; 0 before the first."),
    _gauge("level_phase", "", "1 for the current phase of the level.", "phase"),
    _gauge("level_purpose", "", "1 for the purpose of the level.", "purpose"),
    _counter("levels", "", "Levels that ended, by decision.", "decision"),
    *(MetricDefinition(key, row.prometheus, "histogram", f"{row.title} of each "
                       f"{'gap' if key in GAPS else 'request'}. {row.counted}")
      for key, row in HISTOGRAMS.items()),
    _counter("output_tokens", "", "Output tokens received."),
    _counter("prompt_tokens", "", "Prompt tokens of ended requests, as reported by the server."),
    _counter("requests", "", "Requests that ended, by outcome (`ok`: no failure).", "outcome"),
    _counter("good_requests", "", "Requests that met every SLO, each judged by its own "
             "latencies."),
    _gauge("slo_limit", "seconds", "Limit of the SLO; of an output speed, the time per token "
           "that it stands for.", "slo"),
    _gauge("slo_allowed", "ratio", "Share of the latencies that may be over the limit.", "slo"),
    _counter("slo_observations", "", "Latencies that the SLO applies to.", "slo"),
    _counter("slo_misses", "", "Of them, those over the limit, counted exactly.",
             "slo"),
    _counter("drill_events", "", "Of a drill: events that have begun, by name.", "event"),
    _gauge("drill_expectation", "", "Of a drill: 1 for an expectation that came true, 0 for one "
           "that did not; none while that is not decided.", "expectation"),
    _gauge("loop_lag", "seconds", "The longest delay of a load process's event loop in the last "
           "second.", "process"),
    _counter("client_cpu", "seconds", "CPU time of each process of the load generator.",
             "process"),
    _gauge("bracket_low_users", "", "Highest level so far that met every SLO, judged over all "
           "levels."),
    _gauge("bracket_high_users", "", "Lowest level so far that did not."),
    _gauge("knee_users", "", "The knee, once found."),
    _gauge("knee_low_users", "", "Lower end of the knee's 95% interval."),
    _gauge("knee_high_users", "", "Upper end of the knee's 95% interval."),
    _gauge("bracket_low_rate", "per_second", "As `bracket_low_users`, in an open loop."),
    _gauge("bracket_high_rate", "per_second", "As `bracket_high_users`, in an open loop."),
    _gauge("knee_rate", "per_second", "The knee of an open loop, once found."),
    _gauge("knee_low_rate", "per_second", "Lower end of its 95% interval."),
    _gauge("knee_high_rate", "per_second", "Upper end of its 95% interval."),
)  # fmt: skip
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
    """Render the page in the Prometheus text format."""
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
    """Return vLLM's newest name of a series."""
    return series_names(key)[0]


def rate(series: str, back: str, by: str) -> str:
    """Return the rate per second, summed over all labels but `by`."""
    return f"sum by ({by}) (rate({series}[{back}]))"


def quantile(q: float, buckets: str) -> str:
    """Return the quantile as Prometheus estimates it, interpolated within a bucket."""
    return f"histogram_quantile({q}, {buckets})"


def quantile_of(q: float, histogram: str, back: str, by: str) -> str:
    """Return the quantile of a histogram by its name."""
    return quantile(q, rate(f"{histogram}_bucket", back, f"le, {by}"))


def finite_mean(key: str, part: Callable[[str], str]) -> str:
    """Return the mean of the finite values of a run's histogram; `part`: of its `_sum`, ..."""
    # Failures are infinite: our `_sum` leaves them out but `_count` does not, so the divisor is the
    # bucket with the largest finite bound.
    finite = f'_bucket{{le="{HISTOGRAMS[key].buckets_s[-2]}"}}'
    return f"{part('_sum')} / {part(finite)}"
