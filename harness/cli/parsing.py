"""argparse with error messages like the rest of the harness: found, expected, what to try."""

from __future__ import annotations

import argparse
import shlex
import sys
import tomllib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from textwrap import fill
from typing import Any, Final, NoReturn, TypeAlias

from harness.cli.by_name import call
from harness.cli.other_tools import hint, is_foreign
from harness.errors import ConfigError, closest
from harness.run.scenario import expanded, options_of

Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"  # noqa: SLF001 - its only name
HELP_WIDTH: Final = 79  # of a help text
VERBATIM: Final = "--start-args"


class Parser(argparse.ArgumentParser):
    """Raises ConfigError instead of printing usage; accepts no abbreviated options."""

    # what may follow `--`: another command line, `inner` of the result
    takes_command: tuple[str, ...] = ()

    def __init__(self, **options: Any) -> None:
        options["description"] = fill(options.get("description", ""), HELP_WIDTH)
        raw = argparse.RawDescriptionHelpFormatter  # keeps the epilog's lines as they are
        super().__init__(allow_abbrev=False, formatter_class=raw, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Reject unknown options early, so that the message names the subcommand's help."""
        given = list(sys.argv[1:] if args is None else args)
        top = self._subparsers
        if top is not None:
            commands: Any = top._group_actions[0].choices  # noqa: SLF001 - their only place
            given = expanded(given, commands)
        if VERBATIM in given:  # its value may begin with dashes
            at = given.index(VERBATIM)
            given[at : at + 2] = ["=".join(given[at : at + 2])]
        end = given.index("--") if self.takes_command and "--" in given else len(given)
        words = given[:end]
        if "--" not in given:
            self._check_separator(given)
        for at, word in enumerate(words):
            if word == "--" or (top and not word.startswith("-")):
                break
            self._check_option(word, words[at + 1] if words[at + 1 :] else "")
        found, extra = super().parse_known_args(words, namespace)
        if not top:
            found.words, found.inner, found.options = words, given[end + 1 :], options_of(self)
        if extra:
            self.error(f"unrecognized arguments: {' '.join(extra)}")
        return found, extra

    def _check_separator(self, given: list[str]) -> None:
        """Raises ConfigError for an inner command that no `--` precedes."""
        at = next((i for i, word in enumerate(given) if word in self.takes_command), 0)
        if at:
            line = shlex.join([*given[:at], "--", *given[at : at + 1]])
            raise ConfigError(
                f"{self.prog} has {given[at]!r} among its own words: expected -- before the "
                f"command that it repeats; try `{self.prog} {line} ...`."
            )

    def _check_option(self, word: str, after: str) -> None:
        """Raises ConfigError for an option that the command does not have."""
        name, _, value = word.partition("=")
        unknown = name not in self._option_string_actions
        if unknown and (name.startswith("--") or is_foreign(name)):
            has_url = any(action.dest == "url" for action in self._actions)
            told = hint(
                name, value or after, self._option_string_actions, self.prog, has_url=has_url
            )
            raise ConfigError(f"{self.prog} has no option {name}{told} `{self.prog} --help`.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse, with our error message."""
        if action.choices is not None and value not in action.choices:
            what, known = "/".join(action.option_strings), list(action.choices)
            meant = closest(str(value), known, known[0])
            raise ConfigError(
                f"{what or 'the command'} is {value!r}: expected one of {', '.join(known)}; "
                f"try {what or self.prog} {meant}."
            )

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError instead of exiting (exit code 2 either way)."""
        raise ConfigError(f"{message}; try `{self.prog} --help`.")


def add_command(commands: Subparsers, name: str, execute: str | Callable[[Any], int]) -> Parser:
    """The parser of a command, with the texts that commands.toml has for it.

    `execute`: the function, or its name for `call` where its module is heavy.
    """
    texts = {**_texts()[name]}
    shown = examples(*texts.pop("examples"))
    parser = commands.add_parser(name, epilog=shown, **texts)
    function = partial(call, execute) if isinstance(execute, str) else execute
    parser.set_defaults(execute=function)
    return parser


@cache
def _texts() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("commands.toml").read_text())


def examples(*lines: str) -> str:
    """The end of a help text: example command lines."""
    return "\n".join(("Examples:", *(f"  {line}" for line in lines)))
