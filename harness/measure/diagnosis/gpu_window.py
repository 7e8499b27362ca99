"""The GPUs' side of one window: how busy, how full, how hot, how many joules for a token."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum, isnan, nan
from typing import TYPE_CHECKING, Final

from harness.measure.typed_json import round_floats
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.measure.records.samples import GpuSample

# NVML's bits, which DCGM uses too. Bit 1 is left out: low clocks of an idle GPU are no throttling.
THROTTLES: Final = {
    0x2: "clocks set by a user",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
    0x100: "display",
}
# not chosen
SLOWING_REASONS: Final = frozenset(THROTTLES.values()) - {"clocks set by a user", "display"}
# The same reasons as Prometheus labels.
REASON_LABELS: Final = {
    words: words.replace(" (", "_").replace(")", "").replace(" ", "_")
    for words in THROTTLES.values()
}
MIB: Final = 1 << 20
# Field of GpuSample -> (the exporter's series without its prefix, factor to the series' unit).
GPU_SERIES: Final = {
    "util_pct": ("gpu_utilization_ratio", 0.01),
    "memory_util_pct": ("gpu_memory_utilization_ratio", 0.01),
    "memory_used_mib": ("gpu_memory_used_bytes", MIB),
    "power_w": ("gpu_power_watts", 1.0),
    "energy_j": ("gpu_energy_joules_total", 1.0),
    "sm_clock_mhz": ("gpu_sm_clock_hertz", 1e6),
    "memory_clock_mhz": ("gpu_memory_clock_hertz", 1e6),
    "temperature_c": ("gpu_temperature_celsius", 1.0),
    "pcie_rx_mb_per_s": ("gpu_pcie_receive_bytes_per_second", 1e6),
    "pcie_tx_mb_per_s": ("gpu_pcie_transmit_bytes_per_second", 1e6),
}


def throttle_reasons(mask: int) -> tuple[str, ...]:
    """Why clocks are held down, in words; unknown bits are left out."""
    return tuple(words for bit, words in THROTTLES.items() if mask & bit)


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """The GPUs in one window: means over them, power and memory added up; null: not known."""

    gpus: int = 0  # GPUs that were read
    samples: int = 0  # readings, all GPUs together
    util_pct_mean: float = nan  # share of the time in which any kernel ran, %
    memory_util_pct_mean: float = nan  # share of the time in which memory was read or written, %
    memory_used_mib_max: float = nan  # memory in use at most, MiB
    power_w: float = nan  # power drawn on average, W
    j_per_output_token: float = nan  # energy for an output token, J
    sm_clock_mhz_min: float = nan  # clock of the multiprocessors, lowest, MHz
    sm_clock_mhz_mean: float = nan  # clock of the multiprocessors, MHz
    sm_clock_mhz_max: float = nan  # clock of the multiprocessors, highest, MHz
    temperature_c_max: float = nan  # temperature of the hottest chip, degrees Celsius
    pcie_rx_mb_per_s: float = nan  # PCIe traffic to the GPUs, MB/s
    pcie_tx_mb_per_s: float = nan  # PCIe traffic from the GPUs, MB/s
    throttled_share: float = nan  # share of the readings in which something slowed the clocks
    throttled: str = ""  # what held the clocks down, each with its share of the readings


def gpu_figures(samples: Sequence[GpuSample], tokens_per_s: float = nan) -> GpuFigures:
    """Of the samples of a window; `tokens_per_s`: output tokens that arrived in it."""
    if not samples:
        return GpuFigures()
    each: defaultdict[int, list[GpuSample]] = defaultdict(list)
    for sample in samples:
        each[sample.gpu].append(sample)
    power = fsum(_power_w(one) for one in each.values())
    held = Counter(reason for s in samples for reason in s.throttled or ())
    known = any(sample.throttled is not None for sample in samples)
    slowed = sum(1 for s in samples if SLOWING_REASONS.intersection(s.throttled or ()))
    figures = GpuFigures(
        gpus=len(each),
        samples=len(samples),
        util_pct_mean=_mean(s.util_pct for s in samples),
        memory_util_pct_mean=_mean(s.memory_util_pct for s in samples),
        memory_used_mib_max=fsum(_max(s.memory_used_mib for s in o) for o in each.values()),
        power_w=power,
        j_per_output_token=power / tokens_per_s if tokens_per_s > 0 else nan,
        sm_clock_mhz_min=-_max(-s.sm_clock_mhz for s in samples),
        sm_clock_mhz_mean=_mean(s.sm_clock_mhz for s in samples),
        sm_clock_mhz_max=_max(s.sm_clock_mhz for s in samples),
        temperature_c_max=_max(s.temperature_c for s in samples),
        pcie_rx_mb_per_s=fsum(_mean(s.pcie_rx_mb_per_s for s in o) for o in each.values()),
        pcie_tx_mb_per_s=fsum(_mean(s.pcie_tx_mb_per_s for s in o) for o in each.values()),
        throttled_share=slowed / len(samples) if known else nan,
        throttled=", ".join(f"{why} {count / len(samples):.0%}" for why, count in held.items()),
    )
    return round_floats(figures, 4)


def _power_w(samples: Sequence[GpuSample]) -> float:
    """Mean power of one GPU: from its energy counter, else from its power readings."""
    first, last = samples[0], samples[-1]
    seconds = (last.at_ns - first.at_ns) / SECOND
    joules = last.energy_j - first.energy_j
    if seconds > 0 and joules >= 0:
        return joules / seconds
    return _mean(sample.power_w for sample in samples)


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if not isnan(value)]
    return fsum(known) / len(known) if known else nan


def _max(values: Iterable[float]) -> float:
    return max((value for value in values if not isnan(value)), default=nan)
