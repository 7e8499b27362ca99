"""Deployments compared per GPU, and which is best for what, among those with the same load."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from harness.compare.compare_folders import (
    compare_in_pairs,
    figures_of,
    mean_sides,
    measured_settings,
)
from harness.search.comparison import (
    KNEE,
    MORE_IS_BETTER,
    Best,
    best_by,
    best_setting,
    between,
    divided,
    ranked_by,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.compare.compare_folders import MeasuredRun, MeasuredSettings, Sides
    from harness.search.comparison import Comparison, Setting, Side

LATENCIES: Final = ("ttft_p95", "itl_p95")


def compare_deployments(
    settings: Sequence[Setting], tolerance: float
) -> tuple[list[Comparison], list[Best]]:
    """Every two that were measured with the same load; fills in each one's own figures.

    Users, tokens and requests per second are those of a GPU.
    """
    comparisons: list[Comparison] = []
    bests: list[Best] = []
    for among in dict.fromkeys(map(_load_name, settings)):
        group = [setting for setting in settings if _load_name(setting) == among]
        measured = measured_settings(group)
        pairs = _compare_per_gpu(group, measured, tolerance)
        comparisons += pairs
        if len(measured.runs) > 1:
            bests.append(_most(group, pairs, among))
            bests += _lowest(group, measured, tolerance, among)
    return comparisons, bests


def _load_name(setting: Setting) -> str:
    """`workload=rag` of `tp-2 workload=rag`."""
    return setting.name.removeprefix(setting.deployment).strip()


def _compare_per_gpu(
    group: Sequence[Setting], measured: MeasuredSettings, tolerance: float
) -> list[Comparison]:
    sides = measured.own_sides()
    compared: dict[str, dict[str, Side]] = {}
    for setting in group:
        own = sides.get(setting.name)
        if own is None:
            continue
        per_gpu = {
            metric: divided(side, setting.gpus or 1)
            for metric, side in own.items()
            if metric in MORE_IS_BETTER
        }
        setting.figures |= figures_of(own)
        setting.per_gpu |= figures_of(per_gpu)
        compared[setting.name] = own | per_gpu
    return compare_in_pairs(compared, 0, measured, tolerance)


def _most(group: Sequence[Setting], pairs: Sequence[Comparison], among: str) -> Best:
    """The most users per GPU, or tokens per second."""
    candidates, metric = ranked_by(group)
    name, ties = best_setting(group, pairs)
    figure = next(setting.per_gpu[metric] for setting in candidates if setting.name == name)
    return Best(metric, 0, among, name, tuple(ties), figure)


def _lowest(
    group: Sequence[Setting], measured: MeasuredSettings, tolerance: float, among: str
) -> list[Best]:
    """The lowest p95 of each latency, at the load per GPU that all of them hold."""
    deployed = [setting for setting in group if setting.name in measured.runs]
    load = min(_reach(setting, measured.runs[setting.name]) for setting in deployed)
    if not 0 < load < inf:
        return []
    sides: dict[str, dict[str, Side]] = {}
    for setting in deployed:
        users = load * (setting.gpus or 1)
        at_load = [_latencies_at(run.sides, users) for run in measured.runs[setting.name]]
        sides[setting.name] = mean_sides(at_load)
    pairs = compare_in_pairs(sides, load, measured, tolerance)
    bests = []
    for metric in LATENCIES:
        values = {name: own[metric].value for name, own in sides.items() if metric in own}
        if len(values) > 1:
            name, ties = best_by(metric, values, pairs)
            figure = figures_of({metric: sides[name][metric]})[metric]
            bests.append(Best(metric, load, among, name, tuple(ties), figure))
    return bests


def _reach(setting: Setting, runs: Sequence[MeasuredRun]) -> float:
    """The load per GPU up to which it was measured to hold: its knee, or its highest level."""
    highest = min(max(run.sides) for run in runs) / (setting.gpus or 1)
    knee, _, _ = setting.per_gpu.get(KNEE, (inf, inf, inf))
    return min(knee, highest)


def _latencies_at(sides: Sides, load: float) -> dict[str, Side]:
    """At a load between two levels, or at the nearest one."""
    found = {}
    for metric in LATENCIES:
        levels = sorted(level for level in sides if level and metric in sides[level])
        if not levels:
            continue
        below = max((level for level in levels if level <= load), default=levels[0])
        above = min((level for level in levels if level >= load), default=levels[-1])
        share = 0.0
        if below < above:
            share = (load - below) / (above - below)
        found[metric] = between(metric, sides[below][metric], sides[above][metric], share)
    return found
