"""The GPUs' side of one window: how busy, how full, how hot, how many joules for a token."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import fsum, isnan, nan
from typing import TYPE_CHECKING

from harness.core.typed_json import round_floats
from harness.metrics.level_figures import GpuFigures
from harness.units import SECOND
from harness.wire.gpu_series import SLOWING_REASONS

if TYPE_CHECKING:
    from harness.records.samples import GpuSample


def gpu_figures(samples: Sequence[GpuSample], tokens_per_s: float = nan) -> GpuFigures:
    """Of the samples of a window; `tokens_per_s`: output tokens that arrived in it."""
    if not samples:
        return GpuFigures()
    by_gpu: defaultdict[int, list[GpuSample]] = defaultdict(list)
    for sample in samples:
        by_gpu[sample.gpu].append(sample)
    gpus = by_gpu.values()
    # Utilization, clocks and temperature are of any GPU; power, memory and traffic add up.
    power_w = fsum(_power_w(gpu) for gpu in gpus)
    j_per_output_token = power_w / tokens_per_s if tokens_per_s > 0 else nan
    figures = GpuFigures(
        gpus=len(by_gpu),
        samples=len(samples),
        util_pct_mean=_mean(samples, "util_pct"),
        memory_util_pct_mean=_mean(samples, "memory_util_pct"),
        memory_used_mib_max=fsum(_max(gpu, "memory_used_mib") for gpu in gpus),
        power_w=power_w,
        j_per_output_token=j_per_output_token,
        sm_clock_mhz_min=_min(samples, "sm_clock_mhz"),
        sm_clock_mhz_mean=_mean(samples, "sm_clock_mhz"),
        sm_clock_mhz_max=_max(samples, "sm_clock_mhz"),
        temperature_c_max=_max(samples, "temperature_c"),
        pcie_rx_mb_per_s=fsum(_mean(gpu, "pcie_rx_mb_per_s") for gpu in gpus),
        pcie_tx_mb_per_s=fsum(_mean(gpu, "pcie_tx_mb_per_s") for gpu in gpus),
        throttled_share=_slowed_share(samples),
        throttled=_throttling(samples),
    )
    return round_floats(figures, 4)


def _slowed_share(samples: Sequence[GpuSample]) -> float:
    """Share of the samples with a clock held down; NaN where GPUs do not say."""
    if all(sample.throttled is None for sample in samples):
        return nan
    reasons = [sample.throttled or () for sample in samples]
    slowed = [given for given in reasons if SLOWING_REASONS.intersection(given)]
    return len(slowed) / len(samples)


def _throttling(samples: Sequence[GpuSample]) -> str:
    """Every reason with its share of the samples, slowing or not."""
    counts: Counter[str] = Counter()
    for sample in samples:
        counts.update(sample.throttled or ())
    return ", ".join(f"{reason} {count / len(samples):.0%}" for reason, count in counts.items())


def _power_w(samples: Sequence[GpuSample]) -> float:
    """Mean power of one GPU: from its energy counter, else from its power readings."""
    first = samples[0]
    last = samples[-1]
    seconds = (last.at_ns - first.at_ns) / SECOND
    joules = last.energy_j - first.energy_j
    # The counter has all of the window, a power reading only its instant.
    if seconds > 0 and joules >= 0:
        return joules / seconds
    return _mean(samples, "power_w")


def _known(samples: Sequence[GpuSample], name: str) -> list[float]:
    values = [getattr(sample, name) for sample in samples]
    return [value for value in values if not isnan(value)]


def _mean(samples: Sequence[GpuSample], name: str) -> float:
    known = _known(samples, name)
    return fsum(known) / len(known) if known else nan


def _min(samples: Sequence[GpuSample], name: str) -> float:
    return min(_known(samples, name), default=nan)


def _max(samples: Sequence[GpuSample], name: str) -> float:
    return max(_known(samples, name), default=nan)
