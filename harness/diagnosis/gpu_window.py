"""The GPUs' side of one window: how busy, how full, how hot, how many joules for a token."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
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
