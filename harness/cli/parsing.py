"""argparse, made to answer as the rest of the harness does: what was found, expected, to try."""

from __future__ import annotations

import argparse
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final, NoReturn

from harness.errors import ConfigError
from harness.units import duration_ns, percent

if TYPE_CHECKING:
    from collections.abc import Callable

    Subparsers = argparse._SubParsersAction["Parser"]  # noqa: SLF001 - its only name

WIDTH: Final = 79  # of a help text


class Parser(argparse.ArgumentParser):
    """Raises ConfigError instead of printing usage; accepts no abbreviated options."""

    def __init__(self, **options: Any) -> None:
        """Take ArgumentParser's options."""
        options["description"] = fill(options.get("description", ""), WIDTH)
        raw = argparse.RawDescriptionHelpFormatter  # keeps the epilog's lines as they are
        super().__init__(allow_abbrev=False, formatter_class=raw, **options)

    def error(self, message: str) -> NoReturn:
        """Turn argparse's complaint into ours (exit code 2 either way)."""
        raise ConfigError(f"{message}; try `{self.prog} --help`.")


def paste(*lines: str) -> str:
    """The end of a help text: three lines to paste into a shell."""
    return "\n".join(("To paste:", *(f"  {line}" for line in lines)))


def duration(option: str) -> Callable[[str], int]:
    """A reader of `500ms` into ns, above zero, for the option so called."""

    def read(text: str) -> int:
        value = duration_ns(text, option)
        if value <= 0:
            raise ConfigError(f"{option} is {text!r}: expected more than zero; try '30s'.")
        return value

    return read


def share(option: str) -> Callable[[str], float]:
    """A reader of `1%` into 0.01 for the option so called."""
    return lambda text: percent(text, option)


def count(option: str, least: int = 1) -> Callable[[str], int]:
    """A reader of a whole number of at least `least` for the option so called."""

    def read(text: str) -> int:
        if not text.strip().removeprefix("-").isdecimal() or int(text) < least:
            raise ConfigError(
                f"{option} is {text!r}: expected a whole number from {least} up; "
                f"try {option} {max(least, 1)}."
            )
        return int(text)

    return read


def levels(option: str) -> Callable[[str], tuple[int, ...]]:
    """A reader of `1,2,4` into (1, 2, 4)."""
    one = count(option)

    def read(text: str) -> tuple[int, ...]:
        return tuple(one(part.strip()) for part in text.split(","))

    return read


def writable(option: str, path: str) -> str:
    """`path`, a file that can be written; "-" is standard output. Raises ConfigError."""
    where = Path(path)
    try:
        new = path != "-" and not where.exists()
        if new or where.is_file() or where.is_dir():  # a pipe's reader would see it end
            where.open("xb" if new else "ab").close()
        if new:
            where.unlink()
    except OSError as error:
        raise ConfigError(
            f"{option} is {path!r} ({error.strerror}): expected a file that can be written, in a "
            f"folder that exists; try {option} result.json."
        ) from None
    return path
