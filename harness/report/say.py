"""Numbers to the precision they have: the interval decides the digits.

The last digit printed is the place of the half-width's first digit (one more when that digit is 1),
of two to four: 412.37 with [398.2, 431.9] is `412`, with [371, 455] `410`. Without an interval:
three. A figure that has a limit gets as many as it takes to show on which side of it it lies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from harness.measure.result import Latency

NAN: Final = math.nan
UNKNOWN: Final = "–"  # noqa: RUF001 - a dash for people, not a minus
FEWEST_DIGITS, PLAIN_DIGITS, MOST_DIGITS = 2, 3, 4
WHOLE_DIGITS: Final = 6  # before the point there may be so many
MOST_DECIMALS: Final = 3  # to show that a figure is not its limit
SMALL_LEAD: Final = 2  # below this a single digit would round by up to a half of the half-width


def places(value: float, lo: float = NAN, hi: float = NAN) -> int:
    """Decimal places to print; negative: round to tens, hundreds, ..."""
    scale = next((abs(v) for v in (value, lo, hi) if v and math.isfinite(v)), 1.0)
    size = math.floor(math.log10(scale))
    half = (hi - lo) / 2
    if not math.isfinite(half) or half <= 0:
        return max(PLAIN_DIGITS - 1 - size, 0)
    lead = math.floor(math.log10(half))
    if half / 10**lead < SMALL_LEAD:
        lead -= 1
    most = min(max(MOST_DIGITS - 1 - size, 0), WHOLE_DIGITS - 1 - size)
    large = max(half, abs(value) if math.isfinite(value) else 0.0)
    fewest = FEWEST_DIGITS - 1 - math.floor(math.log10(large))
    return max(min(-lead, most), fewest)


def say(value: float, lo: float = NAN, hi: float = NAN) -> str:
    """One number with the digits that [lo, hi] leaves it; `1,910`, `12.4`, `inf`."""
    return rounded(value, places(value, lo, hi))


def rounded(value: float, decimals: int) -> str:
    """So many decimals (below 0: tens, hundreds), `–` for NaN."""  # noqa: RUF002 - as UNKNOWN
    if math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return f"{round(value, decimals) + 0.0:,.{max(decimals, 0)}f}"  # no -0


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its interval and unit; NaN: not known, +inf: requests failed."""

    value: float = NAN
    lo: float = NAN
    hi: float = NAN  # NaN beside a lower end: there is no upper one
    unit: str = ""
    limit: float = NAN  # that it is held against

    @classmethod
    def of(cls, latency: Latency, statistic: str = "p95", limit: float = NAN) -> Figure:
        """A statistic of a latency with its 95% interval; NaN for one that it does not have."""
        return cls(*latency.at(statistic), unit="ms", limit=limit)

    @property
    def known(self) -> bool:
        """Whether there is a number at all."""
        return not math.isnan(self.value)

    @property
    def weak(self) -> bool:
        """Whether its interval is one-sided, or wider than half of it."""
        return not (self.hi - self.lo <= self.value / 2) and not math.isnan(self.lo)

    @property
    def digits(self) -> str:
        """The number alone, rounded to the side of its limit that it is on."""
        decimals = places(self.value, self.lo, self.hi)
        if math.isfinite(self.value):
            while decimals < MOST_DECIMALS and _side(self.value, self.limit) != _side(
                round(self.value, decimals), self.limit
            ):
                decimals += 1
        return rounded(self.value, decimals)

    @property
    def cell(self) -> str:
        """`412 (398 to 432)`: for a column that says the unit."""
        return self.digits + (f" ({self.interval})" if self.interval else "")

    @property
    def interval(self) -> str:
        """`398 to 432` or `at least 398`, with the number's own digits; "" when there is none."""
        if not math.isfinite(self.lo):  # unknown, or infinite as the number itself
            return ""
        decimals = places(self.value, self.lo, self.hi)
        if math.isnan(self.hi):
            return f"at least {rounded(self.lo, decimals)}"
        return f"{rounded(self.lo, decimals)} to {rounded(self.hi, decimals)}"

    def __str__(self) -> str:
        """`412 ms (398 to 432)`."""
        unit = f" {self.unit}" if self.unit and math.isfinite(self.value) else ""
        return self.digits + unit + (f" ({self.interval})" if self.interval else "")


def _side(value: float, limit: float) -> int:
    return (value > limit) - (value < limit)


def as_float(value: Any) -> float:
    """A JSON figure: null is NaN, "inf" is infinity, anything unreadable NaN."""
    try:
        return NAN if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return NAN


def as_int(value: Any) -> int:
    """An integer of JSON, 0 when it is none."""
    return int(value) if math.isfinite(as_float(value)) else 0


def bounds(pair: Any) -> tuple[float, float]:
    """[lo, hi] of JSON; NaN twice when there is none."""
    if isinstance(pair, list | tuple) and len(pair) == 2:  # noqa: PLR2004 - a pair
        return as_float(pair[0]), as_float(pair[1])
    return NAN, NAN


def count(n: float, one: str, many: str = "") -> str:
    """`1 request`, `1,200 requests`."""
    return f"{n:,.0f} {one if n == 1 else many or one + 's'}"
