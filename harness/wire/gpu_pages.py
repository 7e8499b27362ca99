"""GPUs from an exporter's page: NVIDIA's dcgm-exporter, or our own on the server's machine.

Prometheus text in, one GpuSample per GPU out. DCGM's names and units: NVIDIA's "DCGM Exporter
Metrics" and "Field Identifiers"; a disabled field is missing, and a field that the GPU does not
support has a huge "blank" value. Ours are in docs/exporter.md.
"""

from __future__ import annotations

from collections import defaultdict
from math import nan
from typing import Any, Final

from harness.measure.diagnosis.gpu_window import GPU_SERIES, MIB, REASON_LABELS, throttle_reasons
from harness.measure.records.samples import GpuSample
from harness.wire.prometheus_text import parse_metrics

MIN_BLANK_VALUE: Final = float(1 << 47)  # DCGM_FP64_BLANK; the integers' blanks are even larger
# field of GpuSample -> (DCGM's field, how much of its unit is one of ours)
DCGM_FIELDS: Final = {
    "util_pct": ("DCGM_FI_DEV_GPU_UTIL", 1.0),
    "memory_util_pct": ("DCGM_FI_DEV_MEM_COPY_UTIL", 1.0),
    "memory_used_mib": ("DCGM_FI_DEV_FB_USED", 1.0),
    "power_w": ("DCGM_FI_DEV_POWER_USAGE", 1.0),
    "energy_j": ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e3),  # mJ
    "sm_clock_mhz": ("DCGM_FI_DEV_SM_CLOCK", 1.0),
    "memory_clock_mhz": ("DCGM_FI_DEV_MEM_CLOCK", 1.0),
    "temperature_c": ("DCGM_FI_DEV_GPU_TEMP", 1.0),
    "pcie_rx_mb_per_s": ("DCGM_FI_PROF_PCIE_RX_BYTES", 1e6),  # B/s, as the GPU sees it
    "pcie_tx_mb_per_s": ("DCGM_FI_PROF_PCIE_TX_BYTES", 1e6),
}
OWN_FIELDS: Final = {key: (f"harness_{name}", size) for key, (name, size) in GPU_SERIES.items()}
# the newer name, then the older one
MASKS: Final = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
DCGM_MEMORY: Final = ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED")
OWN_MEMORY: Final = "harness_gpu_memory_bytes"
THROTTLED: Final = "harness_gpu_throttled"  # a line for each reason
WANTED: Final = {
    *(name for names in (DCGM_FIELDS, OWN_FIELDS) for name, _ in names.values()),
    *(*MASKS, *DCGM_MEMORY, OWN_MEMORY, THROTTLED, "harness_gpu_info"),
}
ENGINE_CPU: Final = "harness_engine_cpu_seconds_total"


def gpu_samples(text: bytes | str, at_ns: int) -> list[GpuSample]:
    """Return one sample per GPU, by index; [] without a GPU, or for another page."""
    return [_sample(gpu, values, at_ns) for gpu, values, _ in _by_gpu(text)]


def gpu_labels(text: bytes | str) -> list[dict[str, Any]]:
    """Return the properties of each GPU: index, name, memory in MiB, driver, UUID."""
    return [
        {
            "index": gpu,
            "name": labels.get("modelName", labels.get("name", "")),
            "memory_mib": values[OWN_MEMORY] / MIB
            if OWN_MEMORY in values
            else sum(values.get(name, 0.0) for name in DCGM_MEMORY),
            "driver": labels.get("DCGM_FI_DRIVER_VERSION", labels.get("driver", "")),
            "uuid": labels.get("UUID", labels.get("uuid", "")),
        }
        for gpu, values, labels in _by_gpu(text)
    ]


def engine_cpu_s(text: bytes | str) -> float:
    """Return the CPU time of the engine cores on our exporter's machine; NaN if it is absent."""
    return next((one.value for one in parse_metrics(text, {ENGINE_CPU})), nan)


def _by_gpu(text: bytes | str) -> list[tuple[int, dict[str, float], dict[str, str]]]:
    # A GPU in MIG mode has one line per instance: the largest value of each field stands for it.
    values: defaultdict[int, dict[str, float]] = defaultdict(dict)
    labels: defaultdict[int, dict[str, str]] = defaultdict(dict)
    for sample in parse_metrics(text, WANTED):
        index = sample.labels.get("gpu", "")
        if index.isdecimal() and sample.value < MIN_BLANK_VALUE:
            gpu, name = int(index), sample.name + sample.labels.get("reason", "")
            values[gpu][name] = max(sample.value, values[gpu].get(name, 0.0))
            labels[gpu] |= sample.labels
    return [(gpu, values[gpu], labels[gpu]) for gpu in sorted(values)]


def _sample(gpu: int, values: dict[str, float], at_ns: int) -> GpuSample:
    read: dict[str, Any] = {
        key: values[name] / size
        for names in (OWN_FIELDS, DCGM_FIELDS)
        for key, (name, size) in names.items()
        if name in values
    }
    labels = {words: THROTTLED + label for words, label in REASON_LABELS.items()}
    told = [words for words, name in labels.items() if name in values]
    reasons = tuple(words for words in told if values[labels[words]]) if told else None
    masks = [throttle_reasons(int(values[name])) for name in MASKS if name in values]
    return GpuSample(at_ns, gpu, **read, throttled=masks[0] if masks else reasons)
