"""Commands name the functions of heavy modules as text: each name must be of one."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

from harness.cli.app import COMMANDS

PACKAGE = Path(__file__).parents[1] / "harness"
BY_NAME = {"call": 0, "partial": 1, "add_command": 2}  # which of its arguments is the name


def names_in(path: Path) -> list[str]:
    """Every name that a file calls, or hands on to be called."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    found = []
    for node in calls:
        at = BY_NAME.get(node.func.id, -1) if isinstance(node.func, ast.Name) else -1
        argument = node.args[at] if 0 <= at < len(node.args) else None
        if isinstance(argument, ast.Constant) and ":" in str(argument.value):
            found.append(str(argument.value))
    return found


def test_every_name_is_of_a_function() -> None:
    """And there are some: no command but what is light does its work where it is declared."""
    names = [name for path in sorted(PACKAGE.rglob("*.py")) for name in names_in(path)]
    assert len(set(names)) >= len(COMMANDS) - 3  # knee, run and sweep share theirs
    for name in names:
        module, _, function = name.partition(":")
        assert callable(getattr(import_module(module), function, None)), name
