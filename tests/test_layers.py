"""Imports point downward, and only where docs/design.md says they may."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from test_cli_by_name import names_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "harness"
LAYERS = {
    "errors": 0,
    "units": 1, "entry_points": 1, "memory": 1,  # units refuse with errors
    "core": 2, "load": 2,
    "records": 3,
    "wire": 4, "metrics": 4, "engine": 4,
    "diagnosis": 5, "compat": 5, "charts": 5, "extend": 5,
    "search": 6, "server": 6,
    "compare": 7, "export": 7, "reader": 7,
    "lifecycle": 8, "senders": 8, "webpage": 8,
    "drill": 9,
    "run": 10,
    "capacity": 11, "locust": 11,
    "report": 12,
    "cli": 13,
    "__main__": 14,
}  # fmt: skip
LARGEST_ROOM = 0.15  # of all lines
FILES = sorted(PACKAGE.rglob("*.py"))
LAB = sorted((ROOT / "lab").rglob("*.py"))
PURE = {
    "errors",
    "units",
    "entry_points",
    "extend",
    "core",
    "memory",
    "load",
    "metrics",
    "diagnosis",
    "compat",
}
# Third-party imports that a folder must do without.
FORBIDDEN = {
    "locust": set(LAYERS) - {"senders", "webpage", "locust"},
    "gevent": set(LAYERS) - {"reader", "senders", "webpage", "locust", "drill"},
    "dukpy": set(LAYERS) - {"charts"},
    "socket": PURE,
    "time": PURE,
    "asyncio": set(LAYERS) - {"engine", "lifecycle"},
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
    """Locust and gevent stay where load is sent; what is pure knows no socket and no clock."""
    wrong = []
    for path in FILES:
        for name, line in imports(path):
            package = name.split(".")[0]
            if part_of(path) in FORBIDDEN.get(package, ()):
                wrong.append(f"{path}:{line}: {name}")
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


def test_the_page_has_every_room() -> None:
    """The table of docs/design.md: the layer of each, and which third-party imports it may have."""
    page = (ROOT / "docs/design.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|.*\| ([\w, ]*?) ?\|$", page, re.MULTILINE)
    got = {room: (int(layer), may) for layer, room, may in rows}
    want = {room: (layer, what_it_may(room)) for room, layer in LAYERS.items()}
    assert got == want


def what_it_may(room: str) -> str:
    """As the table says it: "pure", or what it may import that others may not."""
    if room in PURE:
        return "pure"
    libraries = ("asyncio", "dukpy", "gevent", "locust")
    return ", ".join(name for name in libraries if room not in FORBIDDEN[name])


def test_packages_say_their_layer() -> None:
    """The docstring of each folder names the layer that it is tested to be in."""
    docs = {name: (PACKAGE / name / "__init__.py") for name in LAYERS}
    texts = {name: path.read_text() for name, path in docs.items() if path.exists()}
    got = {name: re.findall(r"Layer (\d+)", text) for name, text in texts.items()}
    assert got == {name: [str(LAYERS[name])] for name in texts}


def test_no_files_import_each_other() -> None:
    """Neither directly nor over others, for types, inside a function or by a name as text."""
    modules = {module_of(path): path for path in FILES}
    needs = {
        module: {found for name in needed(path) if (found := known_module(name, modules))}
        for module, path in modules.items()
    }
    # A module whose needs are all done is done; what never gets there is in a circle, or needs one.
    done: set[str] = set()
    while ready := {module for module in needs.keys() - done if needs[module] - {module} <= done}:
        done |= ready
    assert sorted(needs.keys() - done) == []


def needed(path: Path) -> Iterator[str]:
    """All that a file imports, and what it names as text to be imported later."""
    yield from (name for name, _ in imports(path))
    yield from (name.replace(":", ".") for name in names_in(path))


def module_of(path: Path) -> str:
    """`harness.units` of its file; a package's own file has the package's name."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


def known_module(name: str, modules: Mapping[str, Path]) -> str:
    """The module that an imported name is, or is in; "" of others and of the package itself."""
    found = name if name in modules else name.rpartition(".")[0]
    return found if found in modules and found != PACKAGE.name else ""


def test_no_room_is_crowded() -> None:
    """No folder has more than LARGEST_ROOM of the code."""
    lines = Counter[str]()
    for path in FILES:
        lines[part_of(path)] += len(path.read_text().splitlines())
    most = LARGEST_ROOM * lines.total()
    assert {room: count for room, count in lines.items() if count > most} == {}
