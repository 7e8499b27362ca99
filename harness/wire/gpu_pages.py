"""GPUs from an exporter's page: NVIDIA's dcgm-exporter, or our own on the server's machine.

Prometheus text in, one GpuSample per GPU out. DCGM's names and units: NVIDIA's "DCGM Exporter
Metrics" and "Field Identifiers"; a disabled field is missing, and a field that the GPU does not
support has a huge "blank" value. Ours are in docs/exporter.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from math import nan
from typing import Any, Final, NamedTuple

from harness.records.samples import GpuSample
from harness.wire.gpu_series import GPU_SERIES, MIB, REASON_LABELS, throttle_reasons
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
DCGM_TOTAL: Final = "DCGM_FI_DEV_FB_TOTAL"
OWN_MEMORY: Final = "harness_gpu_memory_bytes"
THROTTLED: Final = "harness_gpu_throttled"  # a line for each reason
READINGS: Final = {name for name, _ in (*DCGM_FIELDS.values(), *OWN_FIELDS.values())}
MEMORY: Final = {*DCGM_MEMORY, DCGM_TOTAL, OWN_MEMORY}
WANTED: Final = READINGS | MEMORY | {*MASKS, THROTTLED, "harness_gpu_info"}
ENGINE_CPU: Final = "harness_engine_cpu_seconds_total"
OWN_EXPORTER: Final = "harness_target_up"  # on its page with or without a GPU
# A GPU of a page: its host, its UUID (either may be unsaid), and its index there.
GpuKey = tuple[str, str, int]
HOST_LABELS: Final = ("Hostname", "node", "instance")  # dcgm-exporter's; a federation's
INSTANCE: Final = "GPU_I_ID"  # of a GPU in MIG mode
# A series' name, with the reason if it has one, and the MIG instance, "" for the GPU itself.
Part = tuple[str, str]


class GpuLines(NamedTuple):
    """What a page's lines say of one GPU."""

    number: int  # its index, as `numbers` of `gpu_samples` has it
    values: dict[str, float]  # by the series' name
    labels: dict[str, str]


def gpu_samples(
    text: bytes | str, at_ns: int, numbers: dict[GpuKey, int] | None = None
) -> list[GpuSample]:
    """Return one sample per GPU, by index; [] without a GPU, or for another page.

    `numbers` keeps the index of each GPU from one page to the next: two hosts both have a GPU 0.
    """
    return [_sample(gpu, at_ns) for gpu in _by_gpu(text, numbers)]


def gpu_labels(text: bytes | str, numbers: dict[GpuKey, int] | None = None) -> list[dict[str, Any]]:
    """Return the properties of each GPU: index, name, memory in MiB, driver, UUID."""
    return [_properties(gpu) for gpu in _by_gpu(text, numbers)]


def _properties(gpu: GpuLines) -> dict[str, Any]:
    labels = gpu.labels
    # DCGM's label, else our own exporter's
    name = labels.get("modelName", labels.get("name", ""))
    driver = labels.get("DCGM_FI_DRIVER_VERSION", labels.get("driver", ""))
    uuid = labels.get("UUID", labels.get("uuid", ""))
    return {
        "index": gpu.number,
        "name": name,
        "memory_mib": _memory_mib(gpu.values),
        "driver": driver,
        "uuid": uuid,
    }


def _memory_mib(values: Mapping[str, float]) -> float:
    """0: unknown, for which fields are exported is the exporter's configuration."""
    if OWN_MEMORY in values:
        return values[OWN_MEMORY] / MIB
    if DCGM_TOTAL in values:
        return values[DCGM_TOTAL]
    used, free, reserved = DCGM_MEMORY
    if used not in values or free not in values:
        return 0.0
    return values[used] + values[free] + values.get(reserved, 0.0)


def is_own_exporter(text: bytes | str) -> bool:
    """Whether the page is our own exporter's."""
    return bool(parse_metrics(text, {OWN_EXPORTER}))


def engine_cpu_s(text: bytes | str) -> float:
    """Return the CPU time of the engine cores on our exporter's machine; NaN if it is absent."""
    for sample in parse_metrics(text, {ENGINE_CPU}):
        return sample.value
    return nan


def _by_gpu(text: bytes | str, numbers: dict[GpuKey, int] | None) -> list[GpuLines]:
    """Return what the page says of each GPU, by index, and keep these in `numbers`."""
    parts: defaultdict[GpuKey, dict[Part, float]] = defaultdict(dict)
    labels: defaultdict[GpuKey, dict[str, str]] = defaultdict(dict)
    for sample in parse_metrics(text, WANTED):
        key = _key(sample.labels)
        if key is None or not sample.value < MIN_BLANK_VALUE:  # a NaN is below nothing
            continue
        labels[key] |= sample.labels
        name = sample.name + sample.labels.get("reason", "")
        part = (name, sample.labels.get(INSTANCE, ""))
        # A line may be there twice, or once for each container that the GPU is shared by.
        largest = parts[key].get(part, 0.0)
        parts[key][part] = max(sample.value, largest)
    known = {} if numbers is None else numbers
    for key in sorted(parts):
        known.setdefault(key, _free_number(key[-1], known.values()))
    gpus = []
    for key, own_parts in parts.items():
        gpus.append(GpuLines(known[key], _of_gpu(own_parts), labels[key]))
    return sorted(gpus, key=lambda gpu: gpu.number)


def _key(labels: Mapping[str, str]) -> GpuKey | None:
    index = labels.get("gpu", "")
    if not index.isdecimal():
        return None
    hosts = (labels[name] for name in HOST_LABELS if labels.get(name))
    return next(hosts, ""), labels.get("UUID", ""), int(index)


def _free_number(wanted: int, taken: Collection[int]) -> int:
    """Its own index, or the next one that no GPU of another host has."""
    return wanted if wanted not in taken else max(taken) + 1


def _of_gpu(parts: Mapping[Part, float]) -> dict[str, float]:
    """The GPU's values: the memory of MIG instances adds up, all else is the whole GPU's."""
    values: dict[str, float] = {}
    for (name, instance), value in parts.items():
        if instance and (name, "") in parts:
            continue  # the GPU has a line of its own
        before = values.get(name, 0.0)
        if name in (*DCGM_MEMORY, DCGM_TOTAL):
            values[name] = before + value
        else:
            values[name] = max(before, value)
    return values


def _sample(gpu: GpuLines, at_ns: int) -> GpuSample:
    readings: dict[str, Any] = {}
    for series in (OWN_FIELDS, DCGM_FIELDS):
        for field, (name, size) in series.items():
            if name in gpu.values:
                readings[field] = gpu.values[name] / size
    return GpuSample(at_ns, gpu.number, **readings, throttled=_throttled(gpu.values))


def _throttled(values: Mapping[str, float]) -> tuple[str, ...] | None:
    """The reasons in words: of DCGM's bits, else of our exporter's lines; None: not said."""
    for name in MASKS:
        if name in values:
            return throttle_reasons(int(values[name]))
    series = {words: THROTTLED + label for words, label in REASON_LABELS.items()}
    if not any(name in values for name in series.values()):
        return None
    return tuple(words for words, name in series.items() if values.get(name))
