"""What tells of a GPU: the series of our exporter, and why clocks are held down."""

from __future__ import annotations

from typing import Final

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
