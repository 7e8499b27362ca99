"""Sums known only within bounds: their differences, and estimates that are consistent."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum over the requests of a cohort: `lo` <= sum <= `hi`; `at` is the best estimate."""

    at: float
    lo: float
    hi: float

    @property
    def exact(self) -> bool:
        """Whether the sum is known exactly."""
        return self.lo == self.hi

    def near(self, value: float) -> Sum:
        """The same bounds with `value` as the estimate, clamped to them."""
        return replace(self, at=min(max(value, self.lo), self.hi))

    def less(self, part: Sum, least: float = 0.0) -> Sum:
        """This sum minus `part`: at least `least`, unless it is exactly known."""
        at, lo, hi = self.at - part.at, self.lo - part.hi, self.hi - part.lo
        if lo == hi:
            return Sum(at, at, at)
        return Sum(at, max(lo, least), max(hi, least)).near(at)


def agreed(whole: Sum, one: Sum, other: Sum, both: Sum) -> tuple[Sum, Sum, Sum, Sum]:
    """The four sums with consistent estimates: one + other = both, and both <= whole.

    Each estimate stays in its bounds. The bounds of `both` are tightened to those of its two parts.
    """
    both = Sum(both.at, max(both.lo, one.lo + other.lo), min(both.hi, one.hi + other.hi))
    if not whole.exact:
        whole = whole.near(max(whole.at, both.lo))
    both = both.near(min(both.at, whole.at))
    share = one.at / (one.at + other.at) if one.at + other.at > 0 else 0.5
    one = one.near(min(max(both.at * share, both.at - other.hi), both.at - other.lo))
    return whole, one, other.near(both.at - one.at), both
