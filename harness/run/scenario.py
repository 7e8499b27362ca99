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
REPEATED: Final = argparse._AppendAction  # noqa: SLF001 - of `append` and of `extend`


def options_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """A command's options by the names that a scenario has for them."""
    found = [a for a in parser._actions if a.dest != "help"]  # noqa: SLF001 - their only place
    return {a.option_strings[0].lstrip("-") if a.option_strings else a.dest: a for a in found}


def given_options(
    words: Iterable[str], options: Mapping[str, argparse.Action]
) -> Iterator[tuple[str, str, list[str]]]:
    """(name, text, words) of each option on a command line, and of the URL; nothing is checked.

    The name of what is no option is "".
    """
    keys = {name: key for key, action in options.items() for name in action.option_strings}
    place = next((key for key, action in options.items() if not action.option_strings), "url")
    rest = iter(words)
    for word in rest:
        name, equals, text = word.partition("=")
        key = keys.get(name, "")
        if not key:
            yield "" if word.startswith("-") else place, word, [word]
        elif options[key].nargs == 0:
            yield key, "true" if name == f"--{key}" else "false", [word]
        elif equals:
            yield key, text, [word]
        else:
            after = next(rest, None)  # None: argparse says that it lacks its value
            yield key, after or "", [word] if after is None else [word, after]


def expanded(words: list[str], commands: Mapping[str, argparse.ArgumentParser]) -> list[str]:
    """A whole command line, with the options of the file after --scenario. Raises ConfigError.

    What only another command has is left out, and said: one file serves `knee`, `run` and `sweep`.
    """
    every = {name: options_of(parser) for name, parser in commands.items()}
    options = every.get(words[0], {}) if words else {}
    given = list(given_options(words[1:], options))
    paths = [Path(text) for key, text, _ in given if key == "scenario"]
    if "scenario" not in options or not paths:
        return words
    path = paths[-1] / names.SCENARIO if paths[-1].is_dir() else paths[-1]
    ours = {key for of in every.values() if "scenario" in of for key in of} - {"scenario"}
    taken = {key for key, *_ in given}
    for group in commands[words[0]]._mutually_exclusive_groups:  # noqa: SLF001 - as above
        either = {k for k, a in options.items() if a in group._group_actions}  # noqa: SLF001
        taken |= either if either & taken else set()
    if "url" in taken:
        simulated = (k for k, a in options.items() if a.dest.startswith("engine_"))
        taken |= {"embedded", *simulated}
    taken |= {"url"} if "embedded" in taken else set()
    ahead, elsewhere = [], []
    for name, value in _read(path).items():
        key = name.replace("_", "-")
        if key in ours & options.keys():
            ahead += [] if key in taken else _words(f"{name} of {path}", value, options[key])
        elif key in ours:
            elsewhere.append(name)
        else:
            meant = closest(key, options)
            raise ConfigError(
                f"{path} has {name!r}, and `{words[0]}` has no option --{key}: expected names of "
                f"options; try {meant or f'`vllm-harness {words[0]} --help`'}."
            )
    if elsewhere:
        sys.stderr.write(f"{path}: `{words[0]}` leaves out {', '.join(elsewhere)}\n")
    mine = [word for key, _, own in given if key != "scenario" for word in own]
    return [words[0], *ahead, *mine]


def option_words(
    values: Mapping[str, Any], parser: argparse.ArgumentParser, where: str
) -> list[str]:
    """Options of a command in a table of some other file, as words. Raises ConfigError."""
    options, words = options_of(parser), []
    for name, value in values.items():
        if (key := name.replace("_", "-")) not in options:
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
    if isinstance(value, dict):
        between = ":" if ":" in str(action.metavar) else "="  # a header, or NAME=VALUE
        show = json.dumps if str(action.metavar).endswith("JSON") else _text
        texts = [f"{name}{between}{show(one)}" for name, one in value.items()]
    else:
        texts = [_text(one) for one in (value if isinstance(value, list) else [value])]
    texts = texts if isinstance(action, REPEATED) else [",".join(texts)]
    return [f"{flag}={text}" if flag else text for text in texts]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def scenario_of(
    words: Iterable[str], options: Mapping[str, argparse.Action], without: Iterable[str]
) -> dict[str, Value]:
    """What a command line asks for, with the defaults that a later version may not have.

    `without`: names of options that say where results go.
    """
    asked: dict[str, Value] = {
        key: _plain(action.default)
        for key, action in options.items()
        if isinstance(action.default, str) and action.default
    }
    for key, text, _ in given_options(words, options):
        if isinstance(options[key], REPEATED):
            known = asked.setdefault(key, [])
            assert isinstance(known, list)  # noqa: S101 - for mypy: nothing else is put there
            known += slo_texts(text) if key == "slo" else (text,)
        else:
            asked[key] = text == "true" if options[key].nargs == 0 else _plain(text)
    return {key: value for key, value in asked.items() if key not in without}


def _plain(text: str) -> str | int:
    return int(text) if text.isascii() and text.isdecimal() and str(int(text)) == text else text


def to_toml(values: Mapping[str, Value], command: str) -> str:
    """A scenario file. JSON's text, numbers and lists are TOML's too, but for one control."""
    lines = [f"# repeats it: vllm-harness {command} {FLAG} THIS_FILE"]
    lines += [f"{key} = {json.dumps(one, ensure_ascii=False)}" for key, one in values.items()]
    return "\n".join([*lines, ""]).replace("\x7f", "\\u007f")
