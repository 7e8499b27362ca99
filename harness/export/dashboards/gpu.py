"""GPU: what NVML says of each, through the exporter beside the server."""

from __future__ import annotations

from typing import Final

from harness.export.dashboards.model import Dashboard, Panel, Query, Row
from harness.export.dashboards.promql import VARIABLES, beside, beside_rate, server_rate

EACH: Final = "GPU {{gpu}}"
HOT: Final = ((0.0, "green"), (80.0, "orange"), (87.0, "red"))


def _each(key: str) -> Query:
    return Query(EACH, f"sum by (instance, gpu) ({beside(key)})")


def _graph(  # noqa: PLR0917 - a row of a table
    title: str, unit: str, key: str, shows: str, read: str, do: str, *,
    most: float | None = None, colours: tuple[tuple[float, str], ...] = (),
) -> Panel:  # fmt: skip
    return Panel(title, "graph", unit, (_each(key),), shows, read, do, 8, 7, colours, most=most)


FIRST: Final = (
    _graph("Busy", "percentunit", "gpu_utilization",
           "Share of the time in which any kernel ran.",
           "Near 100 % says only that it was never idle, not that it did all it can.",
           "Below 90 % at the knee: the engine's process or the API server holds it up.", most=1.0),
    _graph("Memory busy", "percentunit", "gpu_memory_utilization",
           "Share of the time in which memory was read or written.",
           "Decoding small batches reads all weights for few tokens: high means memory-bound.",
           "High at the knee: quantize weights, or larger batches. Compare with the lowest level.",
           most=1.0),
    Panel("Memory in use", "graph", "bytes",
          (_each("gpu_memory_used"),
           Query("GPU {{gpu}}, all", f"sum by (instance, gpu) ({beside('gpu_memory')})", "limit")),
          "Memory in use, and all that there is (dashed).",
          "vLLM takes its share at the start, so it is flat; KV cache in use is on Server.",
          "Room above the line: --gpu-memory-utilization higher gives the KV cache more blocks.",
          8, 7),
    _graph("Power", "watt", "gpu_power", "Power drawn.",
           "Flat at the card's limit: it is held down by its power cap; see below.",
           "Compare tokens per joule, below, before raising a cap."),
    _graph("SM clock", "hertz", "gpu_sm_clock", "Clock of the multiprocessors.",
           "Falling under load: heat or a power cap.",
           "Levels measured at different clocks do not compare: wait until it is steady."),
    _graph("Temperature", "celsius", "gpu_temperature", "Temperature of the chip.",
           "From about 87 degrees on clocks are held down.",
           "Look at cooling before looking at flags.", colours=HOT),
)  # fmt: skip
ENERGY: Final = f"sum({beside_rate('gpu_energy')})"
MORE: Final = (
    Panel("Clocks held down", "states", "none",
          (Query("GPU {{gpu}}: {{reason}}",
                 f"max by (instance, gpu, reason) ({beside('gpu_throttled')})"),),
          "Reasons for which the GPU holds its clocks down.",
          "Coloured while it lasts; `power_cap` under full load is ordinary.",
          "Heat or hardware reasons make a measurement worthless: fix them first.", 16, 9),
    Panel("Energy per token", "graph", "joule",
          (Query("J per generated token",
                 f"{ENERGY} / sum({server_rate('generation_tokens_total')})"),),
          "Energy of all GPUs over tokens that the server generated.",
          "It falls while batches grow; where it turns, users only wait.",
          "The cheapest point of operation is its lowest part within the SLO.", 8, 9),
    Panel("PCIe", "graph", "Bps",
          (Query("GPU {{gpu}} receives", f"sum by (instance, gpu) ({beside('gpu_pcie_receive')})"),
           Query("GPU {{gpu}} sends", f"sum by (instance, gpu) ({beside('gpu_pcie_transmit')})")),
          "Traffic between host and GPU.",
          "Little while everything stays on the GPU; much where KV blocks are swapped or "
          "offloaded.",
          "Near the link's limit: less offloading, or a tensor-parallel layout that talks less.",
          8, 7),
    _graph("Memory clock", "hertz", "gpu_memory_clock", "Clock of the memory.",
           "Constant on server cards.", "Falling: heat or a power cap."),
    Panel("Which GPUs", "stat", "s",
          (Query("GPU {{gpu}}: {{name}}",
                 f"max by (gpu, name) (({beside('gpu_info')}) * on (job, instance) group_left () "
                 "harness_gpu_sample_age_seconds)"),),
          "Each GPU, and how old its last reading is.",
          "About a second while the exporter reads it.",
          "Older: the driver hangs; no GPU: see the exporter's first line.", 8, 7,
          colours=((0.0, "green"), (5.0, "red")), empty="no GPU is read"),
)  # fmt: skip
DASHBOARD: Final = Dashboard(
    "GPU",
    "What NVML says of each GPU, through `vllm-harness exporter` beside the server.",
    (Row("", FIRST), Row("Held down, energy, traffic", MORE)),
    VARIABLES,
)
