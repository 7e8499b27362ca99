"""GPUs by name: the vendors' figures, and the memory that a driver reports of each.

A card's name says decimal GB; what CUDA counts is less or more. `total_gib` is what torch and vLLM
print of it (`total capacity of ... GiB`), and what `--gpu-memory-utilization` is a share of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from harness.errors import ConfigError, closest

GIB: Final = 1 << 30
DEFAULT_STEP_TOKENS: Final = 2048
LARGE_STEP_TOKENS: Final = 8192  # from LARGE_GIB on, for vLLM's API server
LARGEST_STEP_TOKENS: Final = 16_384
LARGE_GIB: Final = 70
LARGEST_GIB: Final = 160
DEFAULT_SLOTS: Final = 256
LARGE_SLOTS: Final = 1024
SLOW_WITH_LARGE_STEPS: Final = "a100"  # in its name: vLLM leaves the default as it is


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """Vendor's figures: memory bandwidth, 16-bit matrix rate (dense), memory size; real memory."""

    bandwidth_bytes_s: float
    flops_s: float
    memory_bytes: float
    source: str
    total_gib: float

    @property
    def total_bytes(self) -> float:
        """What the driver reports."""
        return self.total_gib * GIB


GPUS: Final[dict[str, GpuSpec]] = {
    "l4": GpuSpec(300e9, 121e12, 24e9, "NVIDIA L4 data sheet", 22.03),
    "a10g": GpuSpec(600e9, 70e12, 24e9, "NVIDIA A10G, as in AWS G5", 22.06),
    "l40s": GpuSpec(864e9, 362e12, 48e9, "NVIDIA L40S data sheet", 44.42),
    "a100-40gb": GpuSpec(1555e9, 312e12, 40e9, "NVIDIA A100 data sheet, SXM 40 GB", 39.50),
    "a100": GpuSpec(2039e9, 312e12, 80e9, "NVIDIA A100 data sheet, SXM 80 GB", 79.15),
    "h100": GpuSpec(3350e9, 989e12, 80e9, "NVIDIA H100 data sheet, SXM", 79.19),
    "h200": GpuSpec(4800e9, 989e12, 141e9, "NVIDIA H200 data sheet, SXM", 139.8),
    "b200": GpuSpec(8000e9, 2250e12, 180e9, "NVIDIA DGX B200 data sheet, an eighth", 178.35),
    "mi300x": GpuSpec(5300e9, 1307e12, 192e9, "AMD Instinct MI300X data sheet", 191.98),
    "t4": GpuSpec(320e9, 65e12, 16e9, "NVIDIA T4 data sheet", 14.56),
    "v100-32gb": GpuSpec(900e9, 125e12, 32e9, "NVIDIA V100 data sheet, SXM2 32 GB", 31.74),
    "rtx-3090": GpuSpec(936e9, 71e12, 24e9, "NVIDIA GA102 white paper", 23.58),
    "rtx-4090": GpuSpec(1008e9, 165.2e12, 24e9, "NVIDIA Ada white paper", 23.64),
    "rtx-5090": GpuSpec(1792e9, 209.5e12, 32e9, "NVIDIA Blackwell white paper", 31.36),
    "rtx-a6000": GpuSpec(768e9, 154.8e12, 48e9, "NVIDIA GA102 white paper", 47.4),
    "rtx-pro-6000": GpuSpec(1792e9, 503.8e12, 96e9, "NVIDIA RTX PRO 6000 data sheet", 95.01),
}


def gpu_name(text: str) -> str:
    """Return the row that a name means: `RTX 4090`, `4090` and `rtx-4090` are one.

    Raises ConfigError.
    """
    word = text.strip().lower().replace(" ", "-").replace("_", "-")
    for name in (word, f"rtx-{word}"):
        if name in GPUS:
            return name
    meant = closest(word, list(GPUS), "h100")
    raise ConfigError(
        f"--gpu is {text!r}: expected one of {', '.join(GPUS)}; try --gpu {meant}, or another "
        "card's --memory and --bandwidth."
    )


def default_step_tokens(gpu: str, total_bytes: float) -> int:
    """Return vLLM 0.32's own `--max-num-batched-tokens` of an API server.

    By name ("": not known) and memory of a GPU (NaN: not known, and taken as small, as vLLM does).
    """
    if total_bytes >= LARGEST_GIB * GIB:
        return LARGEST_STEP_TOKENS
    if total_bytes >= LARGE_GIB * GIB and SLOW_WITH_LARGE_STEPS not in gpu:
        return LARGE_STEP_TOKENS
    return DEFAULT_STEP_TOKENS


def default_slots(gpu: str, total_bytes: float) -> int:
    """Return vLLM 0.32's own `--max-num-seqs`, by the same rule."""
    small = default_step_tokens(gpu, total_bytes) == DEFAULT_STEP_TOKENS
    return DEFAULT_SLOTS if small else LARGE_SLOTS


def batches_in_flight(pipeline: int = 1, asynchronous: bool = True) -> int:
    """Return how many batches are scheduled and not yet settled: one per stage, one to overlap."""
    return pipeline + 1 if asynchronous else pipeline
