"""Parsers of what a user writes: durations, shares, numbers. Each refuses in one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable

from harness.errors import ConfigError
from harness.units import duration_ns, percent


def duration(option: str, example: str = "30s") -> Callable[[str], int]:
    """A parser of `500ms` into ns, above zero; `option` is named in errors."""
    return lambda text: duration_ns(text, option, example)


def duration_or_zero(option: str, example: str = "10s") -> Callable[[str], int]:
    """The same, where it may be `0` or `0s`."""
    return lambda text: 0 if text in ("0", "0s") else duration_ns(text, option, example)


def share(option: str) -> Callable[[str], float]:
    """A parser of `1%` into 0.01; `option` is named in errors."""
    return lambda text: percent(text, option)


def whole_number(
    option: str, min_value: int = 1, example: int = 1, max_value: int | None = None
) -> Callable[[str], int]:
    """A parser of a whole number from `min_value` up to `max_value`."""

    def read(text: str) -> int:
        word = text.strip()
        is_number = word.isascii() and word.isdecimal()
        if (
            not is_number
            or int(word) < min_value
            or (max_value is not None and int(word) > max_value)
        ):
            up = "up" if max_value is None else f"to {max_value:,}"
            raise ConfigError(
                f"{option} is {text!r}: expected a whole number from {min_value} {up}; "
                f"try {option} {example}."
            )
        return int(word)

    return read


def positive_number(option: str) -> Callable[[str], float]:
    """A parser of a number above 0."""

    def read(text: str) -> float:
        if re.fullmatch(r"\d{1,6}(\.\d+)?", text) and (value := float(text)):
            return value
        raise ConfigError(f"{option} is {text!r}: expected a number above 0; try {option} 2.")

    return read
