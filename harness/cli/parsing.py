"""argparse, made to answer as the rest of the harness does: what was found, expected, to try."""

from __future__ import annotations

import argparse
import sys
from itertools import takewhile
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final, NoReturn

from harness.errors import ConfigError, closest
from harness.units import duration_ns, percent

if TYPE_CHECKING:
    from collections.abc import Callable

    Subparsers = argparse._SubParsersAction["Parser"]  # noqa: SLF001 - its only name
    Options = argparse._ActionsContainer  # noqa: SLF001 - a parser or a group

WIDTH: Final = 79  # of a help text


class Parser(argparse.ArgumentParser):
    """Raises ConfigError instead of printing usage; accepts no abbreviated options."""

    def __init__(self, **options: Any) -> None:
        """Take ArgumentParser's options."""
        options["description"] = fill(options.get("description", ""), WIDTH)
        raw = argparse.RawDescriptionHelpFormatter  # keeps the epilog's lines as they are
        super().__init__(allow_abbrev=False, formatter_class=raw, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse what is not known here: the top parser knows neither options nor help page."""
        words = sys.argv[1:] if args is None else args
        top = self._subparsers is not None
        for word in takewhile(lambda word: word.startswith("-") if top else word != "--", words):
            name = word.partition("=")[0]
            if name.startswith("--") and name not in self._option_string_actions:
                meant = closest(name, self._option_string_actions)
                asked = f": did you mean {meant}? Try" if meant else "; try"
                raise ConfigError(f"{self.prog} has no option {name}{asked} `{self.prog} --help`.")
        found, extra = super().parse_known_args(args, namespace)
        if extra:
            self.error(f"unrecognized arguments: {' '.join(extra)}")
        return found, extra

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse does, with a sentence like ours."""
        if action.choices is not None and value not in action.choices:
            what, known = "/".join(action.option_strings), list(action.choices)
            meant = closest(str(value), known, known[0])
            raise ConfigError(
                f"{what or 'the command'} is {value!r}: expected one of {', '.join(known)}; "
                f"try {what or self.prog} {meant}."
            )

    def error(self, message: str) -> NoReturn:
        """Turn argparse's complaint into ours (exit code 2 either way)."""
        raise ConfigError(f"{message}; try `{self.prog} --help`.")


def paste(*lines: str) -> str:
    """The end of a help text: three lines to paste into a shell."""
    return "\n".join(("Examples:", *(f"  {line}" for line in lines)))


def duration(option: str, example: str = "30s") -> Callable[[str], int]:
    """A reader of `500ms` into ns, above zero, for the option so called."""
    return lambda text: duration_ns(text, option, example)


def share(option: str) -> Callable[[str], float]:
    """A reader of `1%` into 0.01 for the option so called."""
    return lambda text: percent(text, option)


def count(option: str, least: int = 1, example: int = 1) -> Callable[[str], int]:
    """A reader of a whole number of at least `least` for the option so called."""

    def read(text: str) -> int:
        word = text.strip()
        if not (word.isascii() and word.isdecimal() and int(word) >= least):
            raise ConfigError(
                f"{option} is {text!r}: expected a whole number from {least} up; "
                f"try {option} {example}."
            )
        return int(word)

    return read


def levels(option: str) -> Callable[[str], tuple[int, ...]]:
    """A reader of `1,2,4` into (1, 2, 4)."""
    one = count(option)

    def read(text: str) -> tuple[int, ...]:
        try:
            return tuple(map(one, text.split(",")))
        except ConfigError:
            raise ConfigError(
                f"{option} is {text!r}: expected whole numbers from 1 up, separated by commas; "
                f"try {option} 1,2,4,8."
            ) from None

    return read


def number(
    group: Options, option: str, text: str = "", *, least: int = 1, example: int = 1, **more: Any
) -> None:
    """Declare an option that takes a whole number; its help ends with the default, if any."""
    if "default" in more:
        text = f"{text}; default: {more['default']}".removeprefix("; ")
    reader = count(option, least, example)
    group.add_argument(option, type=reader, help=text, **{"metavar": "N", **more})


def folder(text: str) -> Path:
    """A reader of --out. Raises ConfigError for "", which would be the folder that we are in."""
    if not text.strip():
        raise ConfigError("--out is empty: expected the name of a new folder; try --out result.")
    return Path(text)


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
