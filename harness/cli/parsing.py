"""argparse with error messages like the rest of the harness: found, expected, what to try."""

from __future__ import annotations

import argparse
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import zip_longest
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
HELP_ALL: Final = "--help-all"
EXAMPLES: Final = "Examples:"


class Parser(argparse.ArgumentParser):
    """Raises ConfigError instead of printing usage; accepts no abbreviated options."""

    # what may follow `--`: another command line, `inner` of the result
    takes_command: tuple[str, ...] = ()
    # options that `--help` shows, the others being for `--help-all`; empty: all
    common: frozenset[str] = frozenset()

    def __init__(self, **options: Any) -> None:
        options["description"] = fill(options.get("description", ""), HELP_WIDTH)
        raw = argparse.RawDescriptionHelpFormatter  # keeps the epilog's lines as they are
        super().__init__(allow_abbrev=False, formatter_class=raw, add_help=False, **options)
        self.add_argument("-h", "--help", action="help", help="Show this help.")

    def show_only(self, common: Iterable[str]) -> None:
        """Let `--help` show these options alone, and `--help-all` all of them."""
        self.common = frozenset(common) | {"--help", HELP_ALL}
        self.add_argument(HELP_ALL, action=_HelpAll, help="Show the help with every option.")

    def format_help(self) -> str:
        if not self.common:
            return super().format_help()
        options = [action for action in self._actions if action.option_strings]
        shown = [action for action in options if self.common & {*action.option_strings}]
        hidden = {action: action.help for action in options if action not in shown}
        for action in hidden:
            action.help = argparse.SUPPRESS
        try:
            text = super().format_help()
        finally:
            for action, help_text in hidden.items():
                action.help = help_text
        more = f"{len(shown)} of {len(options)} options; {self.prog} {HELP_ALL} shows all."
        return text.replace(EXAMPLES, f"{more}\n\n{EXAMPLES}")

    def format_all_help(self) -> str:
        """The help with every option."""
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Reject unknown options early, so that the message names the subcommand's help."""
        given = list(sys.argv[1:] if args is None else args)
        top = self._subparsers
        if top is not None:
            commands: Any = top._group_actions[0].choices  # noqa: SLF001 - their only place
            given = expanded(given, commands)
        _join_verbatim(given)
        words, inner = self._divided(given)
        if "--" not in given:
            self._check_separator(given)
        self._check_options(words)
        found, extra = super().parse_known_args(words, namespace)
        if not top:
            found.words = words
            found.inner = inner
            found.options = options_of(self)
        if extra:
            self.error(f"unrecognized arguments: {' '.join(extra)}")
        return found, extra

    def _divided(self, given: list[str]) -> tuple[list[str], list[str]]:
        """Our own words, and those of the command after `--`."""
        if not self.takes_command or "--" not in given:
            return given, []
        separator = given.index("--")
        return given[:separator], given[separator + 1 :]

    def _check_separator(self, given: list[str]) -> None:
        """Raises ConfigError for an inner command that no `--` precedes."""
        places = (place for place, word in enumerate(given) if word in self.takes_command)
        at = next(places, 0)
        if at:
            line = shlex.join([*given[:at], "--", given[at]])
            raise ConfigError(
                f"{self.prog} has {given[at]!r} among its own words: expected -- before the "
                f"command that it repeats; try `{self.prog} {line} ...`."
            )

    def _check_options(self, words: list[str]) -> None:
        """Raises ConfigError for an option that the command does not have."""
        for word, after in zip_longest(words, words[1:], fillvalue=""):
            if word == "--":
                return
            if self._subparsers and not word.startswith("-"):
                return  # the subcommand, which checks what follows by itself
            self._check_option(word, after)

    def _check_option(self, word: str, after: str) -> None:
        name, _, value = word.partition("=")
        known = self._option_string_actions
        if name in known:
            return
        if name.startswith("--") or is_foreign(name):
            has_url = any(action.dest == "url" for action in self._actions)
            advice = hint(name, value or after, known, self.prog, has_url=has_url)
            raise ConfigError(f"{self.prog} has no option {name}{advice} `{self.prog} --help`.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse, with our error message."""
        if action.choices is not None and value not in action.choices:
            what = "/".join(action.option_strings)
            known = list(action.choices)
            meant = closest(str(value), known, known[0])
            raise ConfigError(
                f"{what or 'the command'} is {value!r}: expected one of {', '.join(known)}; "
                f"try {what or self.prog} {meant}."
            )

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError instead of exiting (exit code 2 either way)."""
        raise ConfigError(f"{message}; try `{self.prog} --help`.")


class _HelpAll(argparse.Action):
    """Prints the help with every option, and exits."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:  # noqa: A002
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        if isinstance(parser, Parser):
            sys.stdout.write(parser.format_all_help())
        parser.exit()


def _join_verbatim(words: list[str]) -> None:
    """Make `--start-args=VALUE` of two words, in place: the value may begin with dashes."""
    if VERBATIM in words:
        at = words.index(VERBATIM)
        flag_and_value = words[at : at + 2]
        words[at : at + 2] = ["=".join(flag_and_value)]


def add_command(commands: Subparsers, name: str, execute: str | Callable[[Any], int]) -> Parser:
    """The parser of a command, with the texts that commands.toml has for it.

    `execute`: the function, or its name for `call` where its module is heavy.
    """
    texts = dict(_texts()[name])
    epilog = examples(*texts.pop("examples"))
    common = texts.pop("common", ())
    parser = commands.add_parser(name, epilog=epilog, **texts)
    if common:
        parser.show_only(common)
    function = partial(call, execute) if isinstance(execute, str) else execute
    parser.set_defaults(execute=function)
    return parser


@cache
def _texts() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("commands.toml").read_text())


def examples(*lines: str) -> str:
    """The end of a help text: example command lines."""
    return "\n".join((EXAMPLES, *(f"  {line}" for line in lines)))
