"""Effects estimated over all levels of a search together, on series whose dependence is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from harness.metrics.statistics import t_quantile
from lab.dependence import effects_together, moments
from lab.effect_estimators import Estimate, search
from lab.planted_series import SHARE, Dependence, planted

# users and lifetimes of the levels of a search on an H100
LEVELS = ((64, 3), (256, 3), (128, 4), (139, 8), (150, 15), (163, 10))
NEAR_KNEE = (139, 150, 163)
SEEDS = 150
# 95% within chance: two standard errors of so many intervals
COVERS = 0.93


class Intervals(NamedTuple):
    """Of the share over the limit, at the levels near the knee."""

    covers: float
    half_width: float  # mean over these levels of the median


def half_width(effect: float, freedom: float, n: int) -> float:
    variance = SHARE * (1 - SHARE) * effect / n
    return float(t_quantile(0.975, max(freedom, 1)) * variance**0.5)


def intervals(kind: Callable[[int], Dependence]) -> tuple[Intervals, Intervals]:
    """(as the search has them, level by level; with the effects of all levels together)."""
    alone: dict[int, list[tuple[bool, float]]] = {users: [] for users in NEAR_KNEE}
    together: dict[int, list[tuple[bool, float]]] = {users: [] for users in NEAR_KNEE}
    for seed in range(SEEDS):
        series = [planted(kind(users), users, length, seed) for users, length in LEVELS]
        own = [search(*one, length) for one, (_, length) in zip(series, LEVELS, strict=True)]
        counted = [
            moments(sent, over.astype(float), length)
            for (sent, over), (_, length) in zip(series, LEVELS, strict=True)
        ]
        shared = [Estimate(e.effect, e.freedom) for e in effects_together(counted)]
        for i, (users, _) in enumerate(LEVELS):
            if users not in NEAR_KNEE:
                continue
            over = series[i][1]
            miss = abs(float(over.mean()) - SHARE)
            for found, estimates in ((alone, own), (together, shared)):
                half = half_width(*estimates[i], len(over))
                found[users].append((miss <= half, half))
    return _summary(alone), _summary(together)


def _summary(found: dict[int, list[tuple[bool, float]]]) -> Intervals:
    covers = np.mean([covered for level in found.values() for covered, _ in level])
    widths = [np.median([half for _, half in level]) for level in found.values()]
    return Intervals(float(covers), float(np.mean(widths)))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("independent", lambda _: Dependence()),
        ("bursts of a tenth of the users", lambda users: Dependence(users // 10, 0.9)),
        ("bursts that resemble the next", lambda users: Dependence(users // 10, 0.9, 0.1)),
    ],
)
def test_waves_as_a_server_has_them(
    name: str, kind: Callable[[int], Dependence], figure: Callable[[str], None]
) -> None:
    """95% intervals cover in 95%, and are no wider than those of each level's own blocks."""
    alone, together = intervals(kind)
    figure(
        f"{name}: level by level {alone.covers:.1%} within ±{alone.half_width:.1%}, "
        f"together {together.covers:.1%} within ±{together.half_width:.1%}"
    )
    assert together.covers >= COVERS
    assert together.half_width <= 1.05 * alone.half_width


@pytest.mark.parametrize("size", [5, 15])
def test_a_memory_of_a_quarter_of_a_lifetime(size: int, figure: Callable[[str], None]) -> None:
    """Blocks of a lifetime resemble their neighbors then, and cover too rarely.

    Over 500 seeds this covers in 92.8% with bursts of 15, and in 95.1% without.
    """
    alone, together = intervals(lambda _: Dependence(size, 0.9, 0.25))
    figure(
        f"memory of a quarter of a lifetime, bursts of {size}: level by level {alone.covers:.1%} "
        f"within ±{alone.half_width:.1%}, together {together.covers:.1%} "
        f"within ±{together.half_width:.1%}"
    )
    assert together.covers >= COVERS - 0.02
    assert together.covers > alone.covers


def test_one_level_is_unlike_the_others() -> None:
    """It keeps what it has: bursts ten times as large give ten times the effect."""
    found = []
    for seed in range(40):
        kinds = [Dependence(60 if users == 150 else 6, 0.9) for users, _ in LEVELS]
        counted = []
        for kind, (users, length) in zip(kinds, LEVELS, strict=True):
            sent, over = planted(kind, users, length, seed)
            counted.append(moments(sent, over.astype(float), length))
        effects = dict(zip((users for users, _ in LEVELS), effects_together(counted), strict=True))
        found.append(effects[150].effect / effects[139].effect)
    assert 7 < np.median(found) < 13


def test_without_a_hit_an_observation_counts_as_one() -> None:
    """There is no variance to compare with."""
    sent = np.linspace(0, 10, 1000, endpoint=False)
    none = moments(sent, np.zeros(1000), 10)
    assert [one.effect for one in effects_together([none, none, none])] == [1.0, 1.0, 1.0]
