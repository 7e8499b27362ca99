"""Sums of which only bounds are known: differences of them, and estimates that fit together."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum over the requests of a cohort: `lo` <= sum <= `hi`; `at` is the likely one."""

    at: float
    lo: float
    hi: float

    @property
    def exact(self) -> bool:
        """Whether nothing is left open."""
        return self.lo == self.hi

    def near(self, value: float) -> Sum:
        """The same bounds, the likely sum as near to `value` as they let it be."""
        return replace(self, at=min(max(value, self.lo), self.hi))

    def less(self, part: Sum, least: float = 0.0) -> Sum:
        """What is left without `part`: at least `least`, unless it is known to be less."""
        at, lo, hi = self.at - part.at, self.lo - part.hi, self.hi - part.lo
        if lo == hi:
            return Sum(at, at, at)
        return Sum(at, max(lo, least), max(hi, least)).near(at)


def agreed(whole: Sum, one: Sum, other: Sum, both: Sum) -> tuple[Sum, Sum, Sum, Sum]:
    """The four with likely sums that add up: one + other = both, and both <= whole.

    Each stays in its bounds; those of `both` are made no wider than those of the two parts say.
    """
    both = Sum(both.at, max(both.lo, one.lo + other.lo), min(both.hi, one.hi + other.hi))
    if not whole.exact:
        whole = whole.near(max(whole.at, both.lo))
    both = both.near(min(both.at, whole.at))
    share = one.at / (one.at + other.at) if one.at + other.at > 0 else 0.5
    one = one.near(min(max(both.at * share, both.at - other.hi), both.at - other.lo))
    return whole, one, other.near(both.at - one.at), both
