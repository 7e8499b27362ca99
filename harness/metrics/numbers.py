"""Formatting of numbers to their precision, and of SLOs and sentences.

The interval of a number determines its digits.

The last digit printed has the place of the first digit of the half-width (one more if that digit is
1), with two to four digits in all: 412.37 with [398.2, 431.9] is `412`, with [371, 455] `410`. A
number without an interval gets three digits. A number with a limit gets as many as it needs to show
on which side of the limit it is.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from harness.errors import one_line
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.metrics.result import Latency
    from harness.metrics.slo import Slo

NAN: Final = math.nan
UNKNOWN: Final = "–"  # noqa: RUF001 - a dash for people, not a minus
MIN_DIGITS: Final = 2
DIGITS_WITHOUT_INTERVAL: Final = 3
MAX_DIGITS: Final = 4
MAX_INTEGER_DIGITS: Final = 6  # before the decimal point
MAX_DECIMALS: Final = 3  # to show that a figure is not its limit
# Markdown ignores an underscore inside a word, so `ttft_p95` needs no escape.
_MARKDOWN: Final = re.compile(
    r"[\\`*\[\]<>|&~]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])|^[#=]|^[+-](?!\d)"
)
# below this a single digit would round by up to a half of the half-width
SMALL_LEADING_DIGIT: Final = 2


def decimal_places(
    value: float, lo: float = NAN, hi: float = NAN, digits: int = DIGITS_WITHOUT_INTERVAL
) -> int:
    """Decimal places to print; negative: round to tens, hundreds, ..."""
    # The first finite value other than 0 sets the scale of the number.
    sizes = (abs(v) for v in (value, lo, hi) if v and math.isfinite(v))
    scale = next(sizes, 1.0)
    size = _power_of_ten(scale)
    half_width = (hi - lo) / 2
    if not math.isfinite(half_width) or half_width <= 0:
        return max(digits - 1 - size, 0)
    last_digit = _power_of_ten(half_width)
    if half_width / 10**last_digit < SMALL_LEADING_DIGIT:
        last_digit -= 1
    max_decimals = max(MAX_DIGITS - 1 - size, 0)
    max_places = min(max_decimals, MAX_INTEGER_DIGITS - 1 - size)
    largest = half_width
    if math.isfinite(value):
        largest = max(half_width, abs(value))
    min_places = MIN_DIGITS - 1 - _power_of_ten(largest)
    if 0 < lo <= value < math.inf:
        # What cannot be 0 is not rounded to 0, however wide its interval is.
        min_places = max(min_places, -_power_of_ten(value))
    return max(min(-last_digit, max_places), min_places)


def _power_of_ten(value: float) -> int:
    """The place of its first digit: 2 of 123, -1 of 0.5."""
    return math.floor(math.log10(value))


def format_number(value: float) -> str:
    """A number without an interval: `1,910`, `12.4`, `inf`."""
    return format_rounded(value, decimal_places(value))


def format_rounded(value: float, decimals: int) -> str:
    """Rounded to `decimals` (negative: tens, hundreds), `–` for NaN."""  # noqa: RUF002 - as UNKNOWN
    if math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return f"{round(value, decimals) + 0.0:,.{max(decimals, 0)}f}"  # no -0


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its interval and unit; NaN: not known, +inf: requests failed."""

    value: float = NAN
    lo: float = NAN
    hi: float = NAN  # NaN with a finite `lo`: no upper end
    unit: str = ""
    limit: float = NAN  # of the SLO on it

    @classmethod
    def of(cls, latency: Latency, statistic: str = "p95", limit: float = NAN) -> Quantity:
        """A statistic of a latency with its 95% interval; NaN if it does not exist."""
        value, lo, hi = latency.at(statistic)
        return cls(value, lo, hi, unit="ms", limit=limit)

    @property
    def known(self) -> bool:
        return not math.isnan(self.value)

    @property
    def weak(self) -> bool:
        """Whether the interval is one-sided, or wider than half of the value."""
        if math.isnan(self.lo):  # there is no interval
            return False
        is_narrow = self.hi - self.lo <= self.value / 2  # not without an upper end
        return not is_narrow

    @property
    def digits(self) -> str:
        """The number alone, rounded to the side of its limit that it is on."""
        decimals = decimal_places(self.value, self.lo, self.hi)
        if math.isfinite(self.value):
            while decimals < MAX_DECIMALS and not self._shows_side(decimals):
                decimals += 1
        return format_rounded(self.value, decimals)

    def _shows_side(self, decimals: int) -> bool:
        """Whether it is rounded to the side of the limit that it is on."""
        rounded = round(self.value, decimals)
        return _side(rounded, self.limit) == _side(self.value, self.limit)

    @property
    def cell(self) -> str:
        """`412 (398 to 432)`: for a column that says the unit."""
        return self._with_interval(self.digits)

    def _with_interval(self, text: str) -> str:
        return f"{text} ({self.interval})" if self.interval else text

    @property
    def interval(self) -> str:
        """`398 to 432`, or `at least 398` without a finite upper end, with the number's own digits.

        "" when there is none.
        """
        if not math.isfinite(self.lo):  # unknown, or infinite as the number itself
            return ""
        decimals = decimal_places(self.value, self.lo, self.hi)
        lo = format_rounded(self.lo, decimals)
        if not math.isfinite(self.hi):  # so many requests failed, or too few ended
            return f"at least {lo}"
        return f"{lo} to {format_rounded(self.hi, decimals)}"

    def __str__(self) -> str:
        """`412 ms (398 to 432)`."""
        unit = f" {self.unit}" if self.unit and math.isfinite(self.value) else ""
        return self._with_interval(self.digits + unit)


def _side(value: float, limit: float) -> int:
    return (value > limit) - (value < limit)


def as_float(value: Any) -> float:
    """A JSON figure: null is NaN, "inf" is infinity, anything unreadable NaN."""
    if value is None or isinstance(value, bool):
        return NAN
    try:
        return float(value)
    except (TypeError, ValueError):
        return NAN


def as_int(value: Any) -> int:
    """An integer of JSON, 0 when it is none."""
    return int(value) if math.isfinite(as_float(value)) else 0


def memory_text(mib: float) -> str:
    """`143,771 MiB`; 0 is unknown."""
    return f"{mib:,.0f} MiB" if mib else "memory unknown"


def count_of(n: float, one: str) -> str:
    """`1 request`, `1,200 requests`."""
    plural = "" if n == 1 else "s"
    return f"{n:,.0f} {one}{plural}"


def percent_text(share: float) -> str:
    """`5%`, `2.5%`: of a share that somebody chose, so no digits are added."""
    return f"{100 * share:.6g}%"


def slo_name(slo: Slo) -> str:
    """`p95 TTFT`."""
    return f"{slo.statistic} {metric_name(slo.metric)}"


def statistic_name(statistic: str) -> tuple[str, str]:
    """(`p95 TTFT`, `ms`) of `ttft_p95`."""
    from harness.metrics.metrics import SLO_METRICS  # noqa: PLC0415 - as below

    metric, _, quantile = statistic.rpartition("_")
    return f"{quantile} {metric_name(metric)}", SLO_METRICS[metric].unit


def metric_name(metric: str) -> str:
    """`TTFT`; e2e stays as it is."""
    from harness.metrics.metrics import SLO_METRICS  # noqa: PLC0415 - numpy, and not for a refusal

    return SLO_METRICS[metric].name


def slo_bound(slo: Slo) -> str:
    """`under 500 ms`, `at least 30 tokens/s`."""
    side = "at least" if slo.speed else "under"
    return f"{side} {slo_limit(slo)}"


def slo_limit(slo: Slo) -> str:
    """`500 ms`, `1.5 s`, `30 tokens/s`."""
    if slo.speed:
        return f"{slo.limit:g} {slo.unit}"
    if slo.limit_ns >= SECOND:
        return f"{slo.limit_ns / SECOND:g} s"
    return f"{slo.limit_ns / MS:g} ms"


def as_sentence(text: str) -> str:
    """Add a capital, unless the text begins with a name like `p95`, and a period."""
    text = text.strip()
    if not text[1:2].isdigit():
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def escape_markdown(text: str) -> str:
    """One line with all Markdown escaped: no tags, no emphasis, no end of a table cell."""
    return _MARKDOWN.sub(r"\\\g<0>", one_line(text))
