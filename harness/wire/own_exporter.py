"""What our own exporter, beside a server on another machine, says: its GPUs, its engine's CPU.

The inverse of `export.target`: Prometheus' base units in, ours out. Names: docs/exporter.md.
"""

from __future__ import annotations

from collections import defaultdict
from math import nan
from typing import TYPE_CHECKING, Any, Final

from harness.measure.gpuside import GPU_SERIES, MIB, REASON_LABELS
from harness.measure.samples import GpuSample
from harness.wire.prometheus_text import parse

if TYPE_CHECKING:
    from harness.wire.prometheus_text import Sample

PREFIX: Final = "harness_"
INFO: Final = "harness_gpu_info"
MEMORY: Final = "harness_gpu_memory_bytes"
THROTTLED: Final = "harness_gpu_throttled"
ENGINE_CPU: Final = "harness_engine_cpu_seconds_total"
WANTED: Final = frozenset(
    {*(PREFIX + name for name, _ in GPU_SERIES.values()), INFO, MEMORY, THROTTLED}
)


def gpu_samples(text: bytes | str, at_ns: int) -> list[GpuSample]:
    """One per GPU, by index; [] when there is no GPU or this is no such exporter."""
    return [_sample(gpu, series, at_ns) for gpu, series in sorted(_by_gpu(text).items())]


def gpu_labels(text: bytes | str) -> list[dict[str, Any]]:
    """What is said of each GPU itself: index, name, memory in MiB, driver, UUID."""
    out = []
    for gpu, series in sorted(_by_gpu(text).items()):
        labels = next((one.labels for one in series if one.name == INFO), {})
        memory = next((one.value for one in series if one.name == MEMORY), nan)
        said = {key: labels.get(key, "") for key in ("name", "driver", "uuid")}
        out.append({"index": gpu, "memory_mib": memory / MIB, **said})
    return out


def engine_cpu_s(text: bytes | str) -> float:
    """CPU time of the engine cores beside that exporter; NaN where it does not say."""
    return next((one.value for one in parse(text, {ENGINE_CPU})), nan)


def _by_gpu(text: bytes | str) -> dict[int, list[Sample]]:
    found: defaultdict[int, list[Sample]] = defaultdict(list)
    for sample in parse(text, WANTED):
        if (gpu := sample.labels.get("gpu", "")).isdecimal():
            found[int(gpu)].append(sample)
    return found


def _sample(gpu: int, series: list[Sample], at_ns: int) -> GpuSample:
    values = {one.name: one.value for one in series if one.name != THROTTLED}
    read = {key: values.get(PREFIX + name, nan) / unit for key, (name, unit) in GPU_SERIES.items()}
    reasons = {one.labels.get("reason", ""): one.value for one in series if one.name == THROTTLED}
    words = tuple(word for word, label in REASON_LABELS.items() if reasons.get(label))
    return GpuSample(at_ns, gpu, **read, throttled=words if reasons else None)
