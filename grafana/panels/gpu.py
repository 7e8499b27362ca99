"""GPU: NVML readings of each GPU, from the exporter on the server's machine."""

from __future__ import annotations

from typing import Final

from panels.model import Dashboard, Panel, Query, Row
from panels.promql import OF_POD, VARIABLES, WINDOW, beside, beside_rate, server_rate

EACH: Final = "GPU {{gpu}}"
OF_DCGM: Final = "{{Hostname}} GPU {{gpu}} (DCGM)"
# Ours -> the name and the factor of NVIDIA's dcgm-exporter, which a cluster often has already.
DCGM: Final = {
    "gpu_utilization": ("DCGM_FI_DEV_GPU_UTIL", "/ 100"),
    "gpu_memory_utilization": ("DCGM_FI_DEV_MEM_COPY_UTIL", "/ 100"),
    "gpu_memory_used": ("DCGM_FI_DEV_FB_USED", "* 1048576"),
    "gpu_power": ("DCGM_FI_DEV_POWER_USAGE", ""),
    "gpu_sm_clock": ("DCGM_FI_DEV_SM_CLOCK", "* 1e6"),
    "gpu_memory_clock": ("DCGM_FI_DEV_MEM_CLOCK", "* 1e6"),
    "gpu_temperature": ("DCGM_FI_DEV_GPU_TEMP", ""),
    "gpu_pcie_receive": ("DCGM_FI_PROF_PCIE_RX_BYTES", ""),
    "gpu_pcie_transmit": ("DCGM_FI_PROF_PCIE_TX_BYTES", ""),
}
HOT: Final = ((0.0, "green"), (80.0, "orange"), (87.0, "red"))


def _each(key: str) -> Query:
    return Query(EACH, f"sum by (instance, gpu) ({beside(key)})")


def _dcgm(key: str, legend: str = OF_DCGM) -> Query:
    """What dcgm-exporter says of the same; without it, nothing."""
    name, factor = DCGM[key]
    value = f"{name}{{{OF_POD}}} {factor}".rstrip()
    return Query(legend, f"sum by (Hostname, gpu) ({value})")


def _graph(  # noqa: PLR0917 - a row of a table
    title: str,
    unit: str,
    key: str,
    shows: str,
    read: str,
    do: str,
    *,
    most: float | None = None,
    colours: tuple[tuple[float, str], ...] = (),
) -> Panel:
    queries = (_each(key), _dcgm(key))
    return Panel(title, "graph", unit, queries, shows, read, do, 8, 7, colours, most=most)


FIRST: Final = (
    _graph(
        "GPU utilization",
        "percentunit",
        "gpu_utilization",
        "Share of the time in which any kernel ran.",
        "Near 100% means only that it was never idle, not that it is at its limit.",
        "Below 90% at the knee: the engine process or the API server holds it back.",
        most=1.0,
    ),
    _graph(
        "Memory bus utilization",
        "percentunit",
        "gpu_memory_utilization",
        "Share of the time in which memory was read or written.",
        "Decoding small batches reads all weights for a few tokens: high means memory-bound.",
        "High at the knee: quantize the weights, or use larger batches. Compare with the lowest "
        "level.",
        most=1.0,
    ),
    Panel(
        "Memory in use",
        "graph",
        "bytes",
        (
            _each("gpu_memory_used"),
            _dcgm("gpu_memory_used"),
            Query(
                "GPU {{gpu}}, total", f"sum by (instance, gpu) ({beside('gpu_memory')})", "limit"
            ),
        ),
        "Memory in use, and the total (dashed).",
        "vLLM allocates its share at startup, so it is flat; KV cache usage is on Server.",
        "Memory left: raising --gpu-memory-utilization gives the KV cache more blocks.",
        8,
        7,
    ),
    _graph(
        "Power",
        "watt",
        "gpu_power",
        "Power draw.",
        "Flat at the card's limit: the power cap throttles it; see below.",
        "Compare the energy per token below before raising the cap.",
    ),
    _graph(
        "SM clock",
        "hertz",
        "gpu_sm_clock",
        "Clock of the streaming multiprocessors.",
        "Falling under load: heat or a power cap.",
        "Levels measured at different clocks are not comparable: wait until it is steady.",
    ),
    _graph(
        "Temperature",
        "celsius",
        "gpu_temperature",
        "Temperature of the GPU.",
        "Clocks are throttled from about 87 degrees.",
        "Check the cooling before changing flags.",
        colours=HOT,
    ),
)
ENERGY: Final = f"sum({beside_rate('gpu_energy')})"
DCGM_ENERGY: Final = (
    f"sum(rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{OF_POD}}}{WINDOW})) / 1000"  # mJ
)
MORE: Final = (
    Panel(
        "Clock throttling",
        "states",
        "none",
        (
            Query(
                "GPU {{gpu}}: {{reason}}",
                f"max by (instance, gpu, reason) ({beside('gpu_throttled')})",
            ),
        ),
        "Why the GPU reduces its clocks.",
        "Red while the reason is active; `power_cap` under full load is normal.",
        "Thermal or hardware reasons invalidate a measurement: fix them first.",
        16,
        9,
    ),
    Panel(
        "Energy per token",
        "graph",
        "joule",
        (
            Query(
                "J per generated token", f"{ENERGY} / sum({server_rate('generation_tokens_total')})"
            ),
            Query(
                "J per generated token (DCGM)",
                f"{DCGM_ENERGY} / sum({server_rate('generation_tokens_total')})",
            ),
        ),
        "Energy of all GPUs divided by the tokens that the server generated.",
        "It falls while batches grow; beyond its minimum, users only wait.",
        "The cheapest operating point is the lowest one that meets the SLOs.",
        8,
        9,
    ),
    Panel(
        "PCIe",
        "graph",
        "Bps",
        (
            Query("GPU {{gpu}} receives", f"sum by (instance, gpu) ({beside('gpu_pcie_receive')})"),
            Query("GPU {{gpu}} sends", f"sum by (instance, gpu) ({beside('gpu_pcie_transmit')})"),
            _dcgm("gpu_pcie_receive", "{{Hostname}} GPU {{gpu}} receives (DCGM)"),
            _dcgm("gpu_pcie_transmit", "{{Hostname}} GPU {{gpu}} sends (DCGM)"),
        ),
        "PCIe traffic between host and GPU.",
        "Low while everything stays on the GPU; high when KV blocks are offloaded.",
        "Near the link's limit: offload less, or use a tensor-parallel layout that communicates "
        "less.",
        8,
        7,
    ),
    _graph(
        "Memory clock",
        "hertz",
        "gpu_memory_clock",
        "Clock of the memory.",
        "Constant on data center GPUs.",
        "Falling: heat or a power cap.",
    ),
    Panel(
        "GPUs: age of the last reading",
        "stat",
        "s",
        (
            Query(
                "GPU {{gpu}}: {{name}}",
                f"max by (gpu, name) (({beside('gpu_info')}) * on (job, instance) group_left () "
                "harness_gpu_sample_age_seconds)",
            ),
        ),
        "Each GPU that the exporter reads, with the age of its last reading.",
        "About a second while the exporter works.",
        "Older: the driver hangs. No GPU: see the first line that the exporter prints.",
        8,
        7,
        colours=((0.0, "green"), (5.0, "red")),
        empty="no GPU",
    ),
)
DASHBOARD: Final = Dashboard(
    "GPU",
    "Readings of each GPU: NVML's, from `vllm-harness exporter` on the server's machine, and "
    "those of NVIDIA's dcgm-exporter where Prometheus has them.",
    (Row("", FIRST), Row("Throttling, energy, PCIe", MORE)),
    VARIABLES,
)
