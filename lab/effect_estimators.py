"""How well the effect of dependence is estimated: on series whose true effect is known.

    python -m lab.effect_estimators

Prints, for each kind of dependence and length, each estimate over the true effect (its tenth, half
and nine tenths), and how often a 95% interval of the share that uses it covers the truth.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from harness.metrics.latency_figures import MAX_LIFETIMES_PER_BLOCK
from harness.metrics.statistics import MAX_BLOCKS, block_count, design_effect, t_quantile
from lab.planted_series import KINDS, SHARE, planted
from lab.waves import Starts, summed_effect

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab.planted_series import Bools, Dependence, Floats

USERS: Final = 150
LIFETIMES: Final = (8, 15, 30, 60)
SERIES: Final = 200
MIN_BLOCKS: Final = 4
LONG: Final = 60  # lifetimes of the series that show the true effect
MANY: Final = 1000  # of these
LIFETIME_S: Final = 2.0  # of the server that was seen: a bin of `summed_effect` is a twentieth


class Estimate(NamedTuple):
    effect: float
    freedom: float  # degrees of freedom that the effect is known with


def _by_blocks(sent: Floats, over: Bools, lifetimes: float, blocks: int) -> Estimate:
    place = np.minimum((sent / lifetimes * blocks).astype(np.int64), blocks - 1)
    sizes = np.bincount(place, minlength=blocks)
    hits = np.bincount(place, over, blocks)
    return Estimate(design_effect(sizes, hits), blocks - 1)


def report(sent: Floats, over: Bools, lifetimes: float) -> Estimate:
    """As the report's effective n and the interval of a quantile."""
    blocks = max(int(block_count(lifetimes, MAX_LIFETIMES_PER_BLOCK)), MIN_BLOCKS)
    return _by_blocks(sent, over, lifetimes, blocks)


def search(sent: Floats, over: Bools, lifetimes: float) -> Estimate:
    """As the search's test of a level."""
    return _by_blocks(sent, over, lifetimes, int(np.clip(lifetimes, MIN_BLOCKS, MAX_BLOCKS)))


def summed(sent: Floats, over: Bools, lifetimes: float) -> Estimate:
    """From the correlations of neighboring moments, summed until they have died away."""
    starts = Starts(sent * LIFETIME_S, np.zeros(len(sent)), lifetimes * LIFETIME_S)
    found = summed_effect(starts, over.astype(np.float64))
    return Estimate(max(found.effect, 1.0), max(2 / found.error**2, 1.0))


ESTIMATES: Final[dict[str, Callable[[Floats, Bools, float], Estimate]]] = {
    "report": report,
    "search": search,
    "summed": summed,
}


def true_effect(kind: Dependence, users: int = USERS) -> float:
    """Variance of the share over many long series, over the binomial's."""
    if not kind.part:
        return 1.0
    shares = []
    sizes = []
    for seed in range(MANY):
        _, over = planted(kind, users, LONG, seed)
        shares.append(over.mean())
        sizes.append(len(over))
    return float(np.var(shares) * np.mean(sizes) / (SHARE * (1 - SHARE)))


class Quality(NamedTuple):
    ratios: Floats  # tenth, half, nine tenths of the estimate over the truth
    covers: float
    half_width: float  # median, in shares


def quality(
    estimate: Callable[[Floats, Bools, float], Estimate],
    kind: Dependence,
    lifetimes: float,
    truth: float,
) -> Quality:
    ratios = []
    halves = []
    covered = 0
    for seed in range(SERIES):
        sent, over = planted(kind, USERS, lifetimes, 1000 + seed)
        effect, freedom = estimate(sent, over, lifetimes)
        variance = SHARE * (1 - SHARE) * effect / len(over)
        half = t_quantile(0.975, freedom) * variance**0.5
        covered += abs(over.mean() - SHARE) <= half
        ratios.append(effect / truth)
        halves.append(half)
    deciles = np.quantile(ratios, (0.1, 0.5, 0.9))
    return Quality(np.asarray(deciles), covered / SERIES, float(np.median(halves)))


def main() -> None:
    say = sys.stdout.write
    say("| dependence (true effect) | lifetimes | " + " | ".join(ESTIMATES) + " |\n")
    say("|---|--:|" + "---|" * len(ESTIMATES) + "\n")
    for name, kind in KINDS.items():
        truth = true_effect(kind)
        for lifetimes in LIFETIMES:
            cells = []
            for estimate in ESTIMATES.values():
                found = quality(estimate, kind, lifetimes, truth)
                low, middle, high = found.ratios
                cells.append(
                    f"{middle:.2f} ({low:.2f} to {high:.2f}), {found.covers:.0%}, "
                    f"±{found.half_width:.1%}"
                )
            say(f"| {name} ({truth:.1f}) | {lifetimes} | " + " | ".join(cells) + " |\n")


if __name__ == "__main__":
    main()
