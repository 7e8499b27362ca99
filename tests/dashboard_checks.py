"""Whether Prometheus answers an expression as it should, moment by moment, and who was compared."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from typing import TYPE_CHECKING

from dashboard_wants import WANTS
from panels import expressions

if TYPE_CHECKING:
    from collections.abc import Callable

    from dashboard_stage import Staged
    from promql_again import Stored, Term, Vector

Key = tuple[str, str, str]
STEP_S = 1.0
OFF_S = 0.337  # of evaluations after scrapes: no sample lies on a window's edge


def close(a: float, b: float) -> bool:
    """Equal but for the order in which floats were added."""
    return a == b or abs(a - b) <= max(1e-9 * max(abs(a), abs(b)), 1e-15) or (isnan(a) and isnan(b))


def same(got: Vector, want: Vector) -> bool:
    """The same labels with the same values."""
    return got.keys() == want.keys() and all(close(got[k], want[k]) for k in got)


def answered(stage: Staged, expr: str, window: str, times: list[float]) -> list[Vector]:
    """What Prometheus says at each time; metric names are left out."""
    filled = stage.filled(expr, window)
    got = stage.prometheus.over(filled, times[0], times[-1], STEP_S)
    vectors: dict[float, Vector] = {round(t, 3): {} for t in times}
    for labels, points in got.items():
        plain = tuple(p for p in labels if p[0] != "__name__")
        for t, value in points:
            vectors[round(t, 3)][plain] = value
    return list(vectors.values())


def moments(stage: Staged) -> list[float]:
    """From before the run's first scrape until it is gone."""
    start = round(stage.began - 3 + OFF_S, 3)
    count = int((stage.ended + 4 - start) / STEP_S)
    return [round(start + i * STEP_S, 3) for i in range(count)]


# the smaller, the nearer to the edge; too small for a float where a rank is not just beside it
NUDGES = (1.0, *(1 + sign * size for size in (1e-9, 1e-12, 1e-14) for sign in (1, -1)))


def wanted(term: Term, stored: Stored, t: float, got: Vector) -> Vector:
    """What it should be; of a quantile on a bucket's edge, the side that Prometheus took."""
    tries = [term(replace(stored, nudge=n), t) for n in NUDGES]
    return next((want for want in tries if same(got, want)), tries[0])


def differences(
    stage: Staged, stored: Stored, window: str, chosen: Callable[[str], bool] = bool
) -> tuple[list[str], dict[Key, int]]:
    """(what differs, in words; how many values of each expression were compared)."""
    times, wrong, compared = moments(stage), [], {}
    for key, expr in expressions():
        if not chosen(expr):
            continue
        values = 0
        for t, got in zip(times, answered(stage, expr, window, times), strict=True):
            want = wanted(WANTS[key], stored, t, got)
            if not same(got, want):
                wrong.append(f"{key} at {t - stage.began:.3f}: {got}, expected {want}")
            values += sum(not isnan(v) for v in got.values())
        compared[key] = values
    return wrong, compared
