"""What one rule answers, and how figures are worded in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isnan
from typing import Final

MISSING: Final = "not among the server's figures"


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule's answer: how sure it is, why, and why not when it is not."""

    confidence: float  # 0 to 1; 0: ruled out
    sentence: str = ""
    evidence: list[str] = field(default_factory=list)
    knobs: list[str] = field(default_factory=list)  # what to turn, with the trade it makes
    against: str = ""  # why it is ruled out, or not said

    @classmethod
    def no(cls, against: str) -> Finding:
        """Ruled out."""
        return cls(0.0, against=against)


def n(value: float, digits: str = ".1f") -> str:
    """A figure, or that it is unknown."""
    return "unknown" if isnan(value) else format(value, digits)


def ms(value: float) -> str:
    """`12.3 ms`, `1,240 ms`."""
    if isnan(value):
        return "an unknown time"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"  # noqa: PLR2004 - digits


def said(value: float, known: str, what: str) -> str:
    """`known` with the figure in it; that `what` is missing where it is NaN."""
    return f"{what} {MISSING}" if isnan(value) else known


def waiting(mean: float) -> str:
    """How many requests wait."""
    return said(mean, f"{mean:.1f} requests wait on average", "waiting requests are")
