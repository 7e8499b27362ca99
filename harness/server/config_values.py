"""Fields of a model's config.json as numbers, words and parts; anything odd is a ConfigError.

Published files have nulls that Transformers wrote, numbers as text, and fields left out. A null
counts as left out, except where `has` asks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from harness.errors import ConfigError, one_line

LARGEST: Final = 10**12  # no size of a model is near it
SHOWN_CHARACTERS: Final = 60
FLAG_WORDS: Final = {"true": True, "false": False, "1": True, "0": False}
Config = Mapping[str, Any]


class ConfigValues:
    """A typed view of some fields, with a family's values for those that a file leaves out."""

    def __init__(
        self, fields: Config, defaults: Config | None = None, file: str = "config.json"
    ) -> None:
        self.fields = fields
        self.defaults = defaults or {}
        self.file = file

    def has(self, name: str) -> bool:
        """Whether the file names the field, be it as null."""
        return name in self.fields

    def value(self, *names: str) -> Any:
        """Return the first of the fields that is not null; else the family's default, else None."""
        for name in names:
            if self.fields.get(name) is not None:
                return self.fields[name]
        for name in names:
            if name in self.defaults:
                return self.defaults[name]
        return None

    def whole(self, *names: str, least: int = 0) -> int | None:
        """Return a whole number, or None where it is left out. Raises ConfigError."""
        value = self.value(*names)
        if value is None:
            return None
        number = _whole(value)
        if number is None or not least <= number <= LARGEST:
            raise self.odd(names[0], value, f"a whole number of at least {least}")
        return number

    def real(self, name: str) -> float | None:
        """Return a number of at least 0, or None where it is left out. Raises ConfigError."""
        value = self.value(name)
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = -1.0
        if isinstance(value, bool) or not 0 <= number <= LARGEST:
            raise self.odd(name, value, "a number of at least 0")
        return number

    def flag(self, name: str, otherwise: bool = False) -> bool:
        """Return true or false, also where it is written as text or as 0 or 1."""
        value = self.value(name)
        if value is None:
            return otherwise
        known = FLAG_WORDS.get(str(value).lower())
        if known is None:
            raise self.odd(name, value, "true or false")
        return known

    def word(self, *names: str) -> str:
        """Return a text; empty where it is left out."""
        value = self.value(*names)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.odd(names[0], value, "a text")
        return value

    def words(self, *names: str) -> tuple[str, ...]:
        """Return a list of texts; empty where it is left out."""
        value = self.value(*names)
        if value is None:
            return ()
        is_list = isinstance(value, list | tuple)
        if not is_list or not all(isinstance(word, str) for word in value):
            raise self.odd(names[0], value, "a list of texts")
        return tuple(value)

    def wholes(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers; empty where it is left out."""
        value = self.value(name)
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise self.odd(name, value, "a list of whole numbers")
        numbers = []
        for item in value:
            number = _whole(item)
            if number is None or not 0 <= number <= LARGEST:
                raise self.odd(name, value, "a list of whole numbers")
            numbers.append(number)
        return tuple(numbers)

    def part(self, name: str, defaults: Config | None = None) -> ConfigValues:
        """Return an object within; an empty one where it is left out."""
        value = self.value(name)
        if value is None:
            return ConfigValues({}, defaults, self.file)
        if not isinstance(value, Mapping):
            raise self.odd(name, value, "an object with fields")
        return ConfigValues(value, defaults, self.file)

    def odd(self, name: str, value: Any, expected: str) -> ConfigError:
        """Return the sentence about a field that holds something else than expected."""
        shown = one_line(repr(value), SHOWN_CHARACTERS)
        return ConfigError(
            f"{self.file} has {shown} as {name}: expected {expected}; try the file that was "
            "published with the model."
        )


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,13}(\.0*)?\s*", value):
        return int(value.split(".")[0])
    return None
