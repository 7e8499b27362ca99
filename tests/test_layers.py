"""Imports point downward, and only where docs/design.md says they may."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parents[1] / "harness"
LAYERS = {
    "errors": -1, "units": 0,  # units refuse with errors
    "measure": 1, "load": 1,
    "wire": 2, "engine": 2, "runfolder": 2,
    "server": 3,
    "export": 4,
    "drive": 5,
    "study": 6, "report": 6,
    "cli": 7, "__main__": 8,
}  # fmt: skip
FILES = sorted(PACKAGE.rglob("*.py"))
FORBIDDEN = {  # third-party imports that a folder must do without
    "locust": set(LAYERS) - {"drive"},
    "gevent": set(LAYERS) - {"drive"},
    "matplotlib": set(LAYERS) - {"report"},
    "socket": {"errors", "units", "measure", "load"},
    "time": {"errors", "units", "measure", "load"},
    "asyncio": set(LAYERS) - {"engine"},
}


def part_of(path: Path) -> str:
    """The folder (or top-level file) of the package that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports at run time or for its types, with the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ((name, node.lineno) for name in names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_point_down(path: Path) -> None:
    """A file imports from its own folder and from lower layers."""
    here = part_of(path)
    wrong = []
    for name, line in imports(path):
        parts = name.split(".")
        if parts[0] != "harness" or here == "__init__" or parts[1] == "__version__":
            continue
        if parts[1] != here and LAYERS[parts[1]] >= LAYERS[here]:
            wrong.append(f"line {line}: {here} ({LAYERS[here]}) imports {name}")
    assert wrong == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_pure_folders_stay_pure(path: Path) -> None:
    """Locust and gevent stay in drive; what is pure knows no socket and no clock."""
    wrong = [
        f"line {line}: {name}"
        for name, line in imports(path)
        if part_of(path) in FORBIDDEN.get(name.split(".")[0], ())
    ]
    assert wrong == []


def test_every_part_has_a_layer() -> None:
    """A new folder must be given its place here and in docs/design.md."""
    parts = {part_of(path) for path in FILES} - {"__init__"}
    assert parts - set(LAYERS) == set()
