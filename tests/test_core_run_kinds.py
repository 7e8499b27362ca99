"""Kinds of run: what is known of each, and that nobody compares them or their names."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.core.run_kinds import RUN_KINDS, RunKind, kind_of
from harness.errors import RunFolderError

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "harness"
TABLE = "harness.core.run_kinds"
CLASSES = {kind.__name__ for kind in RUN_KINDS.values()}
OTHER_MEANING = {"harness.search.comparison.KNEE"}  # a figure that two runs are compared by
FACTS = {
    "knee": {"searches", "judges_live", "spans_loads", "may_repeat", "decides"},
    "run": {"may_repeat", "decides"},
    "sweep": {"spans_loads", "may_repeat", "decides"},
    "drill": {"has_phases", "judges_live", "servers_may_die", "decides"},
    "locust": set(),
}


@pytest.mark.parametrize("name", FACTS)
def test_what_is_true_of_a_kind(name: str) -> None:
    """All facts of each that are true."""
    kind = kind_of(name)
    assert kind.name == name
    assert {fact for fact in dir(kind) if getattr(kind, fact) is True} == FACTS[name]


def test_every_kind_is_in_the_table() -> None:
    """By its name, each once."""
    assert list(RUN_KINDS) == list(FACTS)
    assert set(RUN_KINDS.values()) == set(RunKind.__subclasses__())


def test_a_folder_that_names_no_kind() -> None:
    """It is read as a run of levels that were given."""
    assert kind_of("") is RunKind
    assert {fact for fact in dir(RunKind) if getattr(RunKind, fact) is True} == {"decides"}


def test_an_unknown_kind_is_refused() -> None:
    """A later version may have more kinds."""
    expected = (
        "reports/x is of the kind 'soak': expected one of knee, run, sweep, drill, locust; try"
    )
    with pytest.raises(RunFolderError, match=expected):
        kind_of("soak", "reports/x")


@pytest.mark.parametrize(
    ("file", "subject"),
    [("harness/export/metrics.csv", "run_info"), ("docs/result.md", "`command`")],
)
def test_texts_list_every_kind(file: str, subject: str) -> None:
    """In the table's order."""
    *others, last = RUN_KINDS
    lines = [line for line in (ROOT / file).read_text().splitlines() if subject in line]
    assert f"{', '.join(others)} or {last}" in lines[0]


def test_no_kind_is_compared() -> None:
    """Neither the class nor its name, outside of the table: what differs is a fact of the class."""
    files = {module_of(path): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    constants = {
        f"{module}.{name}" for module, tree in files.items() for name in named_kinds(tree)
    } - OTHER_MEANING
    found = [
        f"{module}:{line}"
        for module, tree in sorted(files.items())
        if module != TABLE
        for line in comparisons(tree, names_of_kinds(module, tree, constants))
    ]
    assert found == []


@pytest.mark.parametrize("file", ["webpage/page", "report/templates"])
def test_no_page_compares_a_kind(file: str) -> None:
    """It is sent the facts."""
    comparison = re.compile(rf"""[=!]==?\s*['"]({"|".join(RUN_KINDS)})['"]""")
    texts = {path.name: path.read_text() for path in (PACKAGE / file).iterdir()}
    assert texts
    assert [name for name, text in texts.items() if comparison.search(text)] == []


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ("kind == 'knee'", True),
        ("'drill' != result.command", True),
        ("kind in ('knee', 'sweep')", True),
        ("kind not in {'locust'}", True),
        ("kind == LOCUST", True),
        ("kind in (LOCUST, x)", True),
        ("kind is KneeRun", True),
        ("issubclass(kind, KneeRun)", True),
        ("match kind:\n    case 'run' | 'sweep':\n        pass", True),
        ("match kind:\n    case {'kind': 'run'}:\n        pass", True),
        ("kind == 'kv_cache'", False),
        ("beat['run'] == number", False),
        ("kind.searches", False),
        ("Wanted('knee', LOCUST, KneeRun)", False),
    ],
)
def test_comparisons_are_found(code: str, is_found: bool) -> None:
    """Whichever way they are written."""
    assert bool(list(comparisons(ast.parse(code), CLASSES | {"LOCUST"}))) is is_found


def test_constants_of_kinds_are_found() -> None:
    """With and without a type, single names and collections of them."""
    tree = ast.parse("A: Final = 'knee'\nB = ('run', 'x')\nC = 'x'\nD = {'run': 1}\nE = f('run')")
    assert set(named_kinds(tree)) == {"A", "B"}
    imported = ast.parse("from harness.x import A as a, B\nfrom harness.y import A as other")
    assert names_of_kinds("harness.z", imported, {"harness.x.A"}) == CLASSES | {"a"}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def named_kinds(tree: ast.Module) -> Iterator[str]:
    """Constants of a file that are the name of a kind, or a collection with one."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        elif isinstance(node, ast.Assign):
            targets = node.targets
        else:
            continue
        assert node.value is not None
        if is_kind(node.value, set()):
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def names_of_kinds(module: str, tree: ast.Module, constants: set[str]) -> set[str]:
    """What stands for a kind in a file: the classes, and constants of its own or imported ones."""
    names = CLASSES | {
        name.removeprefix(f"{module}.") for name in constants if name.startswith(f"{module}.")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {
                alias.asname or alias.name
                for alias in node.names
                if f"{node.module}.{alias.name}" in constants
            }
    return names


def comparisons(tree: ast.Module, names: set[str]) -> Iterator[int]:
    """The lines where a kind is compared, matched or looked up in a collection."""
    for node in ast.walk(tree):
        operands: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            operands = [node.value]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "issubclass":
            operands = node.args
        if any(is_kind(operand, names) for operand in operands):
            yield operands[0].lineno


def is_kind(node: ast.expr, names: set[str]) -> bool:
    """Whether it is the name of a kind, stands for one, or is a collection with such an element."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(is_kind(element, names) for element in node.elts)
    if isinstance(node, ast.Constant):
        return node.value in RUN_KINDS
    if isinstance(node, ast.Attribute):
        return node.attr in names & CLASSES
    return isinstance(node, ast.Name) and node.id in names
