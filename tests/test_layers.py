"""Imports point downward, and only where docs/design.md says they may."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "harness"
LAYERS = {
    "errors": -1, "units": 0, "extensions": 0, "fast_exit": 0,  # units refuse with errors
    "measure": 1, "load": 1,
    "wire": 2, "engine": 2, "runfolder": 2,
    "server": 3,
    "export": 4,
    "reader": 5, "webpage": 5,
    "senders": 6,
    "drive": 7,
    "study": 8, "report": 8,
    "cli": 9, "locust": 9, "__main__": 10,
}  # fmt: skip
FILES = sorted(PACKAGE.rglob("*.py"))
LAB = sorted((ROOT / "lab").rglob("*.py"))
FORBIDDEN = {  # third-party imports that a folder must do without
    "locust": set(LAYERS) - {"senders", "webpage", "drive"},
    "gevent": set(LAYERS) - {"reader", "senders", "webpage", "drive"},
    "matplotlib": set(LAYERS) - {"report"},
    "socket": {"errors", "units", "measure", "load"},
    "time": {"errors", "units", "measure", "load"},
    "asyncio": set(LAYERS) - {"engine"},
}


def part_of(path: Path) -> str:
    """The folder (or top-level file) of the package that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache  # both tests below look at every file
def imports(path: Path) -> list[tuple[str, int]]:
    """Every module that a file imports at run time or for its types, with the line."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ((name, node.lineno) for name in names)


def test_arrows_point_down() -> None:
    """A file imports from its own folder and from lower layers."""
    wrong = []
    for file, name, line in [(path, *one) for path in FILES for one in imports(path)]:
        here = part_of(file)
        parts = name.split(".")
        if parts[0] != "harness" or here == "__init__" or parts[1] == "__version__":
            continue
        if parts[1] != here and LAYERS[parts[1]] >= LAYERS[here]:
            wrong.append(f"{file}:{line}: {here} ({LAYERS[here]}) imports {name}")
    assert wrong == []


def test_pure_folders_stay_pure() -> None:
    """Locust and gevent stay in drive; what is pure knows no socket and no clock."""
    wrong = [
        f"{path}:{line}: {name}"
        for path in FILES
        for name, line in imports(path)
        if part_of(path) in FORBIDDEN.get(name.split(".")[0], ())
    ]
    assert wrong == []


def modules_imported(paths: list[Path]) -> set[str]:
    """The first part of every name that these files import."""
    return {name.partition(".")[0] for path in paths for name, _ in imports(path)}


def test_the_lab_is_above_the_package() -> None:
    """The package does without `lab/`, which is not in the wheel; `lab/` does without scripts."""
    scripts = {path.stem for folder in ("tests", "bench") for path in (ROOT / folder).glob("*.py")}
    assert "lab" not in modules_imported(FILES)
    assert modules_imported(LAB) & scripts == set()


def test_the_lab_lives_in_simulated_time() -> None:
    """It knows no socket and no clock, and nothing of Locust."""
    assert modules_imported(LAB) & set(FORBIDDEN) == set()


def test_every_part_has_a_layer() -> None:
    """A new folder must be given its place here and in docs/design.md."""
    parts = {part_of(path) for path in FILES} - {"__init__"}
    assert parts - set(LAYERS) == set()


def test_packages_say_their_layer() -> None:
    """The docstring of each folder names the layer that it is tested to be in."""
    docs = {name: (PACKAGE / name / "__init__.py") for name in LAYERS}
    texts = {name: path.read_text() for name, path in docs.items() if path.exists()}
    got = {name: text.partition("Layer ")[2][:1] for name, text in texts.items()}
    assert got == {name: str(LAYERS[name]) for name in texts}
