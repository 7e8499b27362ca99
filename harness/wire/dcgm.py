"""Reads dcgm-exporter's metrics: Prometheus text in, one GpuSample per GPU out.

Names and units: NVIDIA's "DCGM Exporter Metrics" and "Field Identifiers". A disabled field is
missing; a field that the GPU does not support has a huge "blank" value.
"""

from __future__ import annotations

from collections import defaultdict
from math import nan
from typing import TYPE_CHECKING, Any, Final

from harness.measure.diagnosis.gpu_window import throttle_reasons
from harness.measure.records.samples import GpuSample
from harness.wire.prometheus_text import parse_metrics

if TYPE_CHECKING:
    from harness.wire.prometheus_text import MetricSample

MIN_BLANK_VALUE: Final = float(1 << 47)  # DCGM_FP64_BLANK; the integers' blanks are even larger
# field of GpuSample -> (DCGM's field, factor from its unit to ours)
DCGM_FIELDS: Final = {
    "util_pct": ("DCGM_FI_DEV_GPU_UTIL", 1.0),
    "memory_util_pct": ("DCGM_FI_DEV_MEM_COPY_UTIL", 1.0),
    "memory_used_mib": ("DCGM_FI_DEV_FB_USED", 1.0),
    "power_w": ("DCGM_FI_DEV_POWER_USAGE", 1.0),
    "energy_j": ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e-3),  # mJ
    "sm_clock_mhz": ("DCGM_FI_DEV_SM_CLOCK", 1.0),
    "memory_clock_mhz": ("DCGM_FI_DEV_MEM_CLOCK", 1.0),
    "temperature_c": ("DCGM_FI_DEV_GPU_TEMP", 1.0),
    "pcie_rx_mb_per_s": ("DCGM_FI_PROF_PCIE_RX_BYTES", 1e-6),  # B/s, as the GPU sees it
    "pcie_tx_mb_per_s": ("DCGM_FI_PROF_PCIE_TX_BYTES", 1e-6),
}
# the newer name, then the older one
THROTTLE: Final = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
MEMORY: Final = ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED")
WANTED: Final = frozenset({name for name, _ in DCGM_FIELDS.values()} | {*THROTTLE, *MEMORY})

Values = dict[str, float]


def gpu_samples(text: bytes | str, at_ns: int) -> list[GpuSample]:
    """Return one sample per GPU, by index; [] without a GPU, or for another exporter's page."""
    return [_sample(gpu, values, at_ns) for gpu, (values, _) in sorted(_by_gpu(text).items())]


def gpu_labels(text: bytes | str) -> list[dict[str, Any]]:
    """Return the properties of each GPU: index, name, memory in MiB, driver, UUID."""
    return [
        {
            "index": gpu,
            "name": labels.get("modelName", ""),
            "memory_mib": sum(values.get(name, 0.0) for name in MEMORY),
            "driver": labels.get("DCGM_FI_DRIVER_VERSION", ""),
            "uuid": labels.get("UUID", labels.get("uuid", "")),
        }
        for gpu, (values, labels) in sorted(_by_gpu(text).items())
    ]


def _by_gpu(text: bytes | str) -> dict[int, tuple[Values, dict[str, str]]]:
    # A GPU in MIG mode has one line per instance: the largest value of each field stands for it.
    found: defaultdict[int, tuple[Values, dict[str, str]]] = defaultdict(lambda: ({}, {}))
    for sample in parse_metrics(text, WANTED):
        if (gpu := _index(sample)) >= 0 and sample.value < MIN_BLANK_VALUE:
            values, labels = found[gpu]
            values[sample.name] = max(sample.value, values.get(sample.name, 0.0))
            labels |= sample.labels
    return found


def _index(sample: MetricSample) -> int:
    text = sample.labels.get("gpu", "")
    return int(text) if text.isdecimal() else -1


def _sample(gpu: int, values: Values, at_ns: int) -> GpuSample:
    read = {key: values.get(name, nan) * factor for key, (name, factor) in DCGM_FIELDS.items()}
    masks = [int(values[name]) for name in THROTTLE if name in values]
    return GpuSample(at_ns, gpu, **read, throttled=throttle_reasons(masks[0]) if masks else None)
