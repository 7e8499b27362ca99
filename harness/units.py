"""Quantities with their unit written: text in, integers out; nanoseconds inside, words outside.

A bare number where a unit belongs is refused: `--slo ttft_p95=500` once meant seconds to one tool
and milliseconds to the next.
"""

import re
from typing import Final

from harness.errors import ConfigError

NS_PER: Final = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
MS: Final = NS_PER["ms"]
SECOND: Final = NS_PER["s"]
LONGEST: Final = 1_000 * NS_PER["h"]  # what every timer can wait for

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ns|us|ms|s|m|h)")
# How units are written elsewhere, the longest first.
_SPELLED: Final = {
    "milliseconds": "ms", "millisecond": "ms", "millis": "ms", "msecs": "ms", "msec": "ms",
    "microseconds": "us", "microsecond": "us", "usec": "us", "\u00b5s": "us", "\u03bcs": "us",
    "seconds": "s", "second": "s", "secs": "s", "sec": "s", "minutes": "m", "minute": "m",
    "mins": "m", "min": "m", "hours": "h", "hour": "h", "hrs": "h", "hr": "h",
}  # fmt: skip


def duration_ns(text: str, what: str = "duration", example: str = "500ms") -> int:
    """Nanoseconds above zero of `500ms`, `2s`, `1.5s`, `10m`, `1m30s`.

    Raises ConfigError for a bare number (its likely unit is that of `example`), an unknown unit,
    trailing text, zero or less, more than LONGEST.
    """
    word = text.strip()
    parts = _PART.findall(word)
    value = sum(float(number) * NS_PER[unit] for number, unit in parts)
    if re.match(r"-|[0.]+$", word) or (parts and not 1 <= value <= LONGEST):
        raise ConfigError(
            f"{what} is {text!r}: expected more than zero and at most 1000h; try {example!r}."
        )
    if not parts or _PART.sub("", word).strip():
        hint = _as_meant(word, example) or example
        raise ConfigError(
            f"{what} is {text!r}, which has no readable unit: expected a number with ns, us, ms, "
            f"s, m or h; try {hint!r}."
        )
    return round(value)


def _as_meant(word: str, example: str) -> str:
    """The same number with a unit that can be read, such as 10m for 10min; "" where none shows.

    A bare number has the unit of `example`.
    """
    meant = re.sub(r"(?<=[0-9]),(?=[0-9])", ".", word.lower().replace(" ", ""))
    for spelled, unit in _SPELLED.items():
        meant = meant.replace(spelled, unit)
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", meant):
        meant += example.lstrip("0123456789")
    parts = _PART.findall(meant)
    whole = parts and not _PART.sub("", meant) and re.fullmatch("[!-~]+", meant)
    return meant if whole and any(float(number) for number, _ in parts) else ""


def percent(text: str, what: str = "share") -> float:
    """Share in [0, 1] of `1%` or `0.5%`. Raises ConfigError without the percent sign."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", text)
    if match is None or float(match[1]) > 100:  # noqa: PLR2004 - a percentage's own bound
        bare = re.fullmatch(r"\s*([0-9]{1,2}|[0-9]?[.][0-9]{1,6})\s*", text, re.ASCII)
        number = float(bare[1]) if bare else 0.0
        number = number * 100 if number < 1 else number  # 0.05 is a share, 5 are percent
        hint = f"{number:g}%" if number else "1%"
        raise ConfigError(
            f"{what} is {text!r}: expected a percentage from 0% to 100% with its sign; "
            f"try {hint!r}."
        )
    return float(match[1]) / 100


def say_ns(ns: float) -> str:
    """A duration for people: `12.3 ms`, `1.25 s`, `40 s`, `2 min 05 s`, three digits at most."""
    if ns != ns or ns in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN test
        return "inf" if ns > 0 else "-"
    for unit, size in (("s", SECOND), ("ms", MS), ("us", 1_000)):
        if abs(ns) >= size:
            if unit == "s" and ns >= 120 * SECOND:
                return f"{int(ns // (60 * SECOND))} min {int(ns % (60 * SECOND)) // SECOND:02d} s"
            value = ns / size
            digits = f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"  # noqa: PLR2004 - three
            return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits} {unit}"
    return f"{ns:.0f} ns"


def exact_ns(ns: int) -> str:
    """The same duration as `duration_ns` reads it, whatever its digits: `500ms`, `12.5ms`, `90s`.

    In the largest unit up to seconds that it fills.
    """
    unit = next((unit for unit in ("s", "ms", "us") if ns >= NS_PER[unit]), "ns")
    whole, rest = divmod(ns, NS_PER[unit])
    places = len(str(NS_PER[unit])) - 1
    return f"{whole}.{rest:0{places}d}".rstrip("0").rstrip(".") + unit if rest else f"{whole}{unit}"
