"""Commands name what is in heavy modules as text: each name must be of a function or a class."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from harness.cli.app import COMMANDS
from harness.cli.by_name import call
from harness.core.entry_points import entry_points_read_once
from harness.core.held_signals import signals_held

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


INTERRUPTED_IMPORT = """
import signal
signal.raise_signal(signal.SIGINT)
came_to_its_end = []
def function(): came_to_its_end.append("called")
"""


def test_an_import_is_not_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is reached, and what it was imported for is not called."""
    (tmp_path / "interrupted_import.py").write_text(INTERRUPTED_IMPORT)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        call("interrupted_import:function")
    import interrupted_import  # noqa: PLC0415

    assert interrupted_import.came_to_its_end == []


INTERRUPTED_START = """
import signal, sys
from harness.cli import main
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "harness.cli.knee":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.exit(main(["doctor"]))
"""


def test_ctrl_c_while_the_command_line_is_imported() -> None:
    """One line and exit code 130, as later."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_START], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "vllm-harness: interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_held_signals_come_when_the_block_is_left(number: signal.Signals) -> None:
    came = []
    before = signal.signal(number, lambda got, _frame: came.append(got))
    try:
        with signals_held():
            signal.raise_signal(number)
            signal.raise_signal(number)
            assert came == []
        assert came == [number]
    finally:
        signal.signal(number, before)


def test_metadata_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often an import asks; afterwards everybody gets the current answer again."""
    plugin = metadata.EntryPoint("ours", "a:b", "plugins")
    read = []

    def entry_points() -> metadata.EntryPoints:
        read.append("all")
        return metadata.EntryPoints([plugin])

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    with entry_points_read_once():
        found = [metadata.entry_points(group=group) for group in ("plugins", "others", "plugins")]
    assert [list(one) for one in found] == [[plugin], [], [plugin]]
    assert read == ["all"]
    assert metadata.entry_points is entry_points
