"""Reads the page of our own exporter on a server's machine: its GPUs, its engine cores' CPU time.

The inverse of `export.target`: Prometheus' base units in, ours out. Names: docs/exporter.md.
"""

from __future__ import annotations

from collections import defaultdict
from math import nan
from typing import TYPE_CHECKING, Any, Final

from harness.measure.diagnosis.gpu_window import GPU_SERIES, MIB, REASON_LABELS
from harness.measure.records.samples import GpuSample
from harness.wire.prometheus_text import parse_metrics

if TYPE_CHECKING:
    from harness.wire.prometheus_text import MetricSample

PREFIX: Final = "harness_"
INFO: Final = "harness_gpu_info"
MEMORY: Final = "harness_gpu_memory_bytes"
THROTTLED: Final = "harness_gpu_throttled"
ENGINE_CPU: Final = "harness_engine_cpu_seconds_total"
WANTED: Final = frozenset(
    {*(PREFIX + name for name, _ in GPU_SERIES.values()), INFO, MEMORY, THROTTLED}
)


def gpu_samples(text: bytes | str, at_ns: int) -> list[GpuSample]:
    """Return one sample per GPU, by index; [] without a GPU, or for another exporter's page."""
    return [_sample(gpu, series, at_ns) for gpu, series in sorted(_by_gpu(text).items())]


def gpu_labels(text: bytes | str) -> list[dict[str, Any]]:
    """Return the properties of each GPU: index, name, memory in MiB, driver, UUID."""
    out = []
    for gpu, series in sorted(_by_gpu(text).items()):
        labels = next((one.labels for one in series if one.name == INFO), {})
        memory = next((one.value for one in series if one.name == MEMORY), nan)
        texts = {key: labels.get(key, "") for key in ("name", "driver", "uuid")}
        out.append({"index": gpu, "memory_mib": memory / MIB, **texts})
    return out


def engine_cpu_s(text: bytes | str) -> float:
    """Return the CPU time of the engine cores on the exporter's machine; NaN if it is absent."""
    return next((one.value for one in parse_metrics(text, {ENGINE_CPU})), nan)


def _by_gpu(text: bytes | str) -> dict[int, list[MetricSample]]:
    found: defaultdict[int, list[MetricSample]] = defaultdict(list)
    for sample in parse_metrics(text, WANTED):
        if (gpu := sample.labels.get("gpu", "")).isdecimal():
            found[int(gpu)].append(sample)
    return found


def _sample(gpu: int, series: list[MetricSample], at_ns: int) -> GpuSample:
    values = {one.name: one.value for one in series if one.name != THROTTLED}
    read = {key: values.get(PREFIX + name, nan) / unit for key, (name, unit) in GPU_SERIES.items()}
    reasons = {one.labels.get("reason", ""): one.value for one in series if one.name == THROTTLED}
    words = tuple(word for word, label in REASON_LABELS.items() if reasons.get(label))
    return GpuSample(at_ns, gpu, **read, throttled=words if reasons else None)
