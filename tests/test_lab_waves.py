"""What the figures of waves say of series whose dependence is known."""

from __future__ import annotations

import numpy as np
import pytest

from lab.waves import (
    Starts,
    dispersion,
    pair_correlation,
    start_correlation,
    summed_effect,
    window_effect,
)

LENGTH_S = 400.0
PER_S = 50.0


def planted(size: int, part: float, seed: int) -> tuple[Starts, np.ndarray]:
    """Bursts of `size` requests, whose `part` of the variance is the burst's own; over a tenth."""
    draw = np.random.default_rng(seed)
    bursts = int(LENGTH_S * PER_S / size)
    at_s = np.sort(draw.random(bursts)) * LENGTH_S
    shared = np.repeat(draw.standard_normal(bursts), size)
    own = draw.standard_normal(bursts * size)
    took = part**0.5 * shared + (1 - part) ** 0.5 * own
    starts = Starts(np.repeat(at_s, size), 100 + 10 * took, LENGTH_S)
    return starts, (took > np.quantile(took, 0.9)).astype(float)


@pytest.mark.parametrize(("size", "part", "effect"), [(1, 0.0, 1.0), (10, 1.0, 10.0)])
def test_known_waves(size: int, part: float, effect: float) -> None:
    """Requests on their own are worth one each, ten with one fate one together."""
    found = []
    by_windows = []
    for seed in range(20):
        starts, over = planted(size, part, seed)
        found.append(summed_effect(starts, over).effect)
        by_windows.append(window_effect(starts, over))
    assert np.mean(found) == pytest.approx(effect, rel=0.1)
    assert np.mean(by_windows) == pytest.approx(effect, rel=0.1)


def test_the_stated_error_is_the_one_seen() -> None:
    """Of the effect, over forty seeds."""
    found = [summed_effect(*planted(10, 1.0, seed)) for seed in range(40)]
    effects = np.array([one.effect for one in found])
    stated = np.mean([one.error for one in found])
    assert effects.std() / effects.mean() == pytest.approx(stated, rel=0.5)


def test_bursts_show_in_the_starts() -> None:
    """Independent bursts of ten: a variance of ten times the mean, and no later echo."""
    starts, _ = planted(10, 1.0, 1)
    assert dispersion(starts) == pytest.approx(10, rel=0.1)
    assert start_correlation(starts)[0] == 1
    assert np.abs(start_correlation(starts)[1:]).max() < 0.06


def test_neighbors_in_time_are_alike_by_what_they_share() -> None:
    """Two requests of one bin are of one burst, or of two that have nothing in common."""
    starts, _ = planted(10, 0.5, 1)
    alike = pair_correlation(starts, starts.ttft_ms)
    # A bin has half a burst more beside each: 9 of 9 + 5 others share a burst.
    assert alike[0] == pytest.approx(0.5 * 9 / 14, abs=0.05)
    assert np.abs(alike[1:]).max() < 0.1
