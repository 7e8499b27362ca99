"""ARRIVALS: when requests are due, as endless offsets in ns from the start of the load."""

from __future__ import annotations

from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Final

from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

BURST_SHAPE: Final = 0.25  # gamma shape k: cv = 1 / sqrt(k) = 2, four times Poisson's variance


def _accumulated(gaps_s: Iterator[float]) -> Iterator[int]:
    """Offsets of gaps, summed as floats in seconds and rounded once: no drift."""
    return (round(at_s * SECOND) for at_s in accumulate(gaps_s))


def _closed(rate_per_s: float, rng: Random) -> Iterator[int]:  # noqa: ARG001 - one signature
    """No schedule: a user sends its next request when the last has ended (-1)."""
    return repeat(-1)


def _constant(rate_per_s: float, rng: Random) -> Iterator[int]:  # noqa: ARG001 - one signature
    """Evenly spaced. The k-th is due at k / rate, free of summed rounding."""
    return (round(k * SECOND / rate_per_s) for k in _naturals())


def _poisson(rate_per_s: float, rng: Random) -> Iterator[int]:
    """Independent arrivals: exponential gaps of mean 1 / rate."""
    return _accumulated(rng.expovariate(rate_per_s) for _ in repeat(None))


def _bursty(rate_per_s: float, rng: Random) -> Iterator[int]:
    """Clumped arrivals: gamma gaps of mean 1 / rate and twice the deviation of Poisson's."""
    scale_s = 1 / (rate_per_s * BURST_SHAPE)
    return _accumulated(rng.gammavariate(BURST_SHAPE, scale_s) for _ in repeat(None))


def _naturals() -> Iterator[int]:
    return accumulate(repeat(1), initial=0)


ARRIVALS: Final[dict[str, Callable[[float, Random], Iterator[int]]]] = {
    "closed": _closed,
    "constant": _constant,
    "poisson": _poisson,
    "bursty": _bursty,
}
