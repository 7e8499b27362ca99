"""A scenario: the options of `knee`, `run` or `sweep` in a TOML file.

A file becomes words of the command line, ahead of those that were given: each option's own parser
reads them, so a new option needs nothing here. What is on the command line replaces the file's
value as a whole. Every run writes the scenario that repeats it. See docs/scenarios.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from harness.errors import ConfigError, closest
from harness.metrics.slo_presets import slo_texts
from harness.records import names

Value = str | int | bool | list[str]

FLAG: Final = "--scenario"
KEY: Final = "scenario"  # the option's name
REPEATED: Final = argparse._AppendAction  # noqa: SLF001 - of `append` and of `extend`


def options_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """A command's options by the names that a scenario has for them."""
    options = {}
    for action in parser._actions:  # noqa: SLF001 - their only place
        if action.dest in ("help", "help_all"):
            continue
        name = action.option_strings[0].lstrip("-") if action.option_strings else action.dest
        options[name] = action
    return options


def given_options(
    words: Iterable[str], options: Mapping[str, argparse.Action]
) -> Iterator[tuple[str, str, list[str]]]:
    """(name, text, words) of each option on a command line, and of the URL; nothing is checked.

    The name of what is no option is "".
    """
    keys = {name: key for key, action in options.items() for name in action.option_strings}
    positionals = [key for key, action in options.items() if not action.option_strings]
    positional = positionals[0] if positionals else "url"
    rest = iter(words)
    for word in rest:
        name, equals, text = word.partition("=")
        key = keys.get(name, "")
        if not key:
            yield "" if word.startswith("-") else positional, word, [word]
        elif options[key].nargs == 0:
            yield key, "true" if name == f"--{key}" else "false", [word]
        elif equals:
            yield key, text, [word]
        else:
            value = next(rest, None)
            if value is None:  # argparse says that it lacks its value
                yield key, "", [word]
            else:
                yield key, value, [word, value]


def expanded(words: list[str], commands: Mapping[str, argparse.ArgumentParser]) -> list[str]:
    """A whole command line, with the options of the file after --scenario. Raises ConfigError.

    What only another command has is left out, and said: one file serves `knee`, `run` and `sweep`.
    """
    if not words or words[0] not in commands:
        return words
    command = words[0]
    options = options_of(commands[command])
    given = list(given_options(words[1:], options))
    texts = [text for key, text, _ in given if key == KEY]
    if KEY not in options or not texts:
        return words
    path = _file_of(texts[-1])
    known = _scenario_options(commands)
    keys = {key for key, *_ in given}
    replaced = _replaced(keys, options, commands[command])
    from_file: list[str] = []
    left_out = []
    for name, value in _read(path).items():
        key = name.replace("_", "-")
        if key not in known:
            meant = closest(key, options)
            raise ConfigError(
                f"{path} has {name!r}, and `{command}` has no option --{key}: expected names of "
                f"options; try {meant or f'`vllm-harness {command} --help`'}."
            )
        if key not in options:
            left_out.append(name)
        elif key not in replaced:
            from_file += _words(f"{name} of {path}", value, options[key])
    if left_out:
        sys.stderr.write(f"{path}: `{command}` leaves out {', '.join(left_out)}\n")
    own: list[str] = []
    for key, _, own_words in given:
        if key != KEY:
            own += own_words
    return [command, *from_file, *own]


def _file_of(text: str) -> Path:
    """A scenario file, or that of a run folder."""
    path = Path(text)
    return path / names.SCENARIO if path.is_dir() else path


def _scenario_options(commands: Mapping[str, argparse.ArgumentParser]) -> set[str]:
    """The names of all options of commands that read a scenario."""
    known: set[str] = set()
    for parser in commands.values():
        options = options_of(parser)
        if KEY in options:
            known |= options.keys()
    return known - {KEY}


def _replaced(
    given: set[str], options: Mapping[str, argparse.Action], parser: argparse.ArgumentParser
) -> set[str]:
    """The options whose value in the file counts no more, as the command line decides them."""
    replaced = set(given)
    for group in parser._mutually_exclusive_groups:  # noqa: SLF001 - as above
        actions = group._group_actions  # noqa: SLF001
        either = {key for key, action in options.items() if action in actions}
        if either & replaced:
            replaced |= either
    # A URL excludes the embedded server with its flags, and this one a URL.
    if "url" in replaced:
        replaced.add("embedded")
        of_engine = {key for key, action in options.items() if action.dest.startswith("engine_")}
        replaced |= of_engine
    if "embedded" in replaced:
        replaced.add("url")
    return replaced


def option_words(
    values: Mapping[str, Any], parser: argparse.ArgumentParser, where: str
) -> list[str]:
    """Options of a command in a table of some other file, as words. Raises ConfigError."""
    options = options_of(parser)
    words: list[str] = []
    for name, value in values.items():
        key = name.replace("_", "-")
        if key not in options:
            raise ConfigError(
                f"{where} has {name!r}: expected options of `{parser.prog}`; "
                f"try {closest(key, options, 'workload')}."
            )
        words += _words(f"{name} of {where}", value, options[key])
    return words


def _read(path: Path) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - only for a command with a scenario

    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{FLAG} is {path} ({getattr(error, 'strerror', None) or error}): expected a TOML file "
            f"with options, as each run folder has one; try {FLAG} FOLDER/{names.SCENARIO}."
        ) from None


def _words(what: str, value: Any, action: argparse.Action) -> list[str]:
    """The words of one line of the file. Raises ConfigError."""
    flag = next(iter(action.option_strings), "")
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ConfigError(f"{what} is {value!r}: expected a switch; try true or false.")
        return [flag] if value else list(action.option_strings[1:])
    texts = _texts(value, str(action.metavar))
    if not isinstance(action, REPEATED):
        texts = [",".join(texts)]
    if not flag:
        return texts
    return [f"{flag}={text}" for text in texts]


def _texts(value: Any, metavar: str) -> list[str]:
    """The texts of one value, which may be a table or a list."""
    if isinstance(value, dict):
        between = ":" if ":" in metavar else "="  # a header, or NAME=VALUE
        to_text = json.dumps if metavar.endswith("JSON") else _text
        return [f"{name}{between}{to_text(item)}" for name, item in value.items()]
    if isinstance(value, list):
        return [_text(item) for item in value]
    return [_text(value)]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def scenario_of(
    words: Iterable[str], options: Mapping[str, argparse.Action], without: Iterable[str]
) -> dict[str, Value]:
    """What a command line asks for, with the defaults that a later version may not have.

    `without`: names of options that say where results go.
    """
    values: dict[str, Value] = {}
    for key, action in options.items():
        default = action.default
        if isinstance(default, str) and default:
            values[key] = _plain(default)
    for key, text, _ in given_options(words, options):
        action = options[key]
        if isinstance(action, REPEATED):
            texts = values.setdefault(key, [])
            assert isinstance(texts, list)  # noqa: S101 - for mypy: nothing else is put there
            texts += slo_texts(text) if key == "slo" else (text,)
        elif action.nargs == 0:
            values[key] = text == "true"
        else:
            values[key] = _plain(text)
    return {key: value for key, value in values.items() if key not in without}


def _plain(text: str) -> str | int:
    """A number as one, if it is written as a number is."""
    is_decimal = text.isascii() and text.isdecimal()
    if is_decimal and str(int(text)) == text:  # not 007
        return int(text)
    return text


def to_toml(values: Mapping[str, Value], command: str) -> str:
    """A scenario file. JSON's text, numbers and lists are TOML's too, but for one control."""
    lines = [f"# repeats it: vllm-harness {command} {FLAG} THIS_FILE"]
    for key, value in values.items():
        lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join([*lines, ""]).replace("\x7f", "\\u007f")
