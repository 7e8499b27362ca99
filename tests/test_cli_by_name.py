"""Commands name what is in heavy modules as text: each name must be of a function or a class."""

from __future__ import annotations

import ast
from pathlib import Path

from harness.cli.app import COMMANDS

ROOT = Path(__file__).parents[1]
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


def is_callable(name: str) -> bool:
    """Whether a file has it at its top. Nothing is imported: Locust would patch this process."""
    module, _, function = name.partition(":")
    path = ROOT / (module.replace(".", "/") + ".py")
    body = ast.parse(path.read_text()).body if path.exists() else []
    return function in {
        node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def test_every_name_is_of_something() -> None:
    """And there are some: no command does its work where it is declared."""
    files = sorted((ROOT / "harness").rglob("*.py"))
    names = {name for path in files for name in names_in(path)}
    assert len(names) >= len(COMMANDS) - 2  # run and sweep share the start of knee
    assert sorted(name for name in names if not is_callable(name)) == []
