"""A block of docs/commands.md: every command and option, from its own help."""  # noqa: INP001 - a script

from __future__ import annotations

from argparse import SUPPRESS
from textwrap import dedent
from typing import TYPE_CHECKING, Any, Final

from harness.cli.app import COMMANDS, parser

if TYPE_CHECKING:
    from argparse import Action, ArgumentParser

HELP: Final = ("help", "help_all")


def commands() -> str:
    parsers = _parsers()
    parts = []
    for name in COMMANDS:
        parts.append(f"## {name}\n\n{_one_line(parsers[name].description)}\n")
        # argparse has no public way to its groups and their options.
        groups = parsers[name]._action_groups  # noqa: SLF001
        parts += [text for group in groups if (text := _group_text(group))]
    return "\n".join(parts).rstrip()


def _parsers() -> dict[str, ArgumentParser]:
    top = parser()._actions  # noqa: SLF001
    subcommands: Any = next(action for action in top if action.choices)
    return dict(subcommands.choices)


def _group_text(group: Any) -> str:
    """A table of the group's options, under its title and its words; "" without any."""
    options = [action for action in group._group_actions if _is_shown(action)]  # noqa: SLF001
    if not options:
        return ""
    text = f"**{group.title.capitalize()}**\n\n"
    if group.description:
        text += f"```text\n{dedent(group.description)}\n```\n\n"
    text += "| Option | What it does |\n|---|---|\n"
    for action in options:
        text += f"| `{_usage(action)}` | {_cell(action)} |\n"
    return text


def _is_shown(action: Action) -> bool:
    return action.help not in {SUPPRESS, None} and action.dest not in HELP


def _usage(action: Action) -> str:
    """`--slo METRIC=LIMIT`; the name alone of what takes no value or is positional."""
    values = str(action.metavar or "")
    if not values and action.choices:
        values = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings:
        return values or action.dest
    takes_value = action.nargs != 0
    return ", ".join(action.option_strings) + (f" {values}" if takes_value and values else "")


def _cell(action: Action) -> str:
    words = str(action.help) % {**vars(action), "prog": "vllm-harness"}
    return _one_line(words).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())
