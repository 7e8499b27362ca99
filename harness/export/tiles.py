"""The tiles of a result: its few figures at a glance, on the live page and in the report."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from harness.metrics.metrics import FIRST_TOKENS, HEADLINES
from harness.metrics.slo import Slo
from harness.units import MS

if TYPE_CHECKING:
    from harness.core.load import LoadUnit
    from harness.metrics.result import Knee, KneeInterval, Level, Result, SloResult

HIGHEST: Final = "the highest level tried"


class Tile(NamedTuple):
    """`value`: a text, or [value, low, high] where there is an interval."""

    name: str
    value: Any
    unit: str
    note: str
    limit: float = nan  # of the SLO on it


def tiles(result: Result) -> list[Tile]:
    knee = result.knee
    if knee is None:
        shown = [
            Tile(slo.slo, slo.verdict, "", _load_text(slo, result.load_unit)) for slo in result.slos
        ]
    else:
        shown = _knee_tiles(knee, result.knee_interval)
    level = result.at_knee
    if level is not None and (knee or len(result.used) == 1):
        shown += _level_tiles(result, level)
    return shown


def _load_text(measured: Level | SloResult, unit: LoadUnit) -> str:
    """At which load that was: `at 5 requests/s`, `at 8 users`."""
    return f"at {measured.load:g} {unit.short_many}"


def _knee_tiles(knee: Knee, interval: KneeInterval | None) -> list[Tile]:
    """The level that passed, and the best estimate."""
    shown = []
    if knee.holds:
        fails = f"fails at {knee.fails_by:,}" if knee.fails_by else HIGHEST
        shown.append(Tile("Holds", f"{knee.holds:,}", knee.unit, fails))
    if knee.estimate is not None:
        note = f"95% CI: {interval.ends}" if interval else ""
        shown.append(Tile("Best estimate", f"{knee.estimate:,}", knee.unit, note))
    return shown


def _level_tiles(result: Result, level: Level) -> list[Tile]:
    """The latencies and the throughput at the knee, or of the only level."""
    knee = result.knee
    load = _load_text(level, result.load_unit)
    slos = [Slo.parse(slo.slo) for slo in result.slos]
    limits_ms = {slo.name: slo.limit_ns / MS for slo in slos}
    shown = []
    for key, name in HEADLINES.items():
        p95_ms = level.latency(key).at("p95")
        if knee and (level.tells_ttft or key not in FIRST_TOKENS):  # of all holds of that level
            p95_ms = knee.p95_ms(key)
        limit_ms = limits_ms.get(f"{key}_p95", nan)
        shown.append(Tile(f"p95 {name}", p95_ms, "ms", load, limit_ms))
    rate = (knee or level).output_tokens_per_s
    shown.append(Tile("Output tokens/s", [rate, nan, nan], "", load))
    return shown
