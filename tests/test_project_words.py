"""Names in comments, docstrings and docs are names of something: what is gone is mentioned nowhere.

Looked at: what stands between backticks and looks like a name, a dotted name or a file, and in
comments and docstrings also dotted names of our own packages without backticks. A name is found if
code has it; a file, if it is here; `a.b`, if module or class `a` has `b`. Names of other projects
stand in data/foreign_words.toml.
"""

from __future__ import annotations

import ast
import io
import os
import re
import tokenize
import tomllib
from collections import defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from harness.export.metric_definitions import METRIC_DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

# one worker reads all of our code, for all
pytestmark = pytest.mark.xdist_group("words")
TOP = Path(__file__).parents[1]
FOLDERS = (
    "harness",
    "lab",
    "tests",
    "bench",
    "grafana",
    "prometheus",
    "locustfiles",
    "examples",
    "docs",
    ".ci",
    "docker",
)
OTHER_CODE = ("*.c", "*.h", "*.js", "*.ts", "*.css", "*.html", "*.toml", "*.yml", "*.json", "*.sh")
PAGES = sorted([*TOP.glob("*.md"), *TOP.glob("docs/**/*.md")])
NOT_OURS = {".venv", ".vllm", ".docker", ".git", "reports", "__pycache__"}
# The past has its own names.
HISTORY = ("CHANGELOG.md", "docs/decisions")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NAME = re.compile(r"[A-Za-z_][\w]*(\.[A-Za-z_]\w*)*(\(\))?")
FILE = re.compile(r"[\w./-]*\w\.(py|c|js|ts|md|toml|yml|css|html|sh|jsonl?)(?!\w)")
QUOTED = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
CAPITALIZED = re.compile(r"[A-Z][a-z0-9]+")
DOTTED = re.compile(r"(?<![\w./-])[a-z_]\w*(?:\.[A-Za-z_]\w*)+(?![\w/(-])")
# Made of a key and a unit: no line of code has them as a whole.
METRIC_NAMES = {row.name for rows in METRIC_DEFINITIONS.values() for row in rows}
FOREIGN = tomllib.loads((TOP / "tests/data/foreign_words.toml").read_text())


class Mention(NamedTuple):
    """A name in prose."""

    path: str
    line: int
    name: str


def sources() -> list[Path]:
    """Every Python file of ours."""
    return sorted(path for folder in FOLDERS for path in (TOP / folder).rglob("*.py"))


class Source(NamedTuple):
    """What is looked at of a Python file; lines are numbered from 1."""

    names: set[str]
    comments: list[tuple[int, str]]
    strings: list[str]  # as they are written, without docstrings
    docstrings: list[tuple[int, str]]
    members: dict[str, set[str]]  # of the module under its own name, and of its classes


@cache
def read(path: Path) -> Source:
    """A Python file, parsed once."""
    text = path.read_text()
    source = Source(set(), [], [], [], defaultdict(set))
    tree = ast.parse(text)
    module = path.parent.name if path.stem == "__init__" else path.stem
    source.members[module].update(bound_in(tree.body))
    prose: set[int] = set()
    for node in definitions_in(tree):
        match node.body[:1]:
            case [ast.Expr(ast.Constant(str(said)) as constant)]:
                source.docstrings.append((constant.lineno, said))
                prose.update(range(constant.lineno, (constant.end_lineno or 0) + 1))
        if isinstance(node, ast.ClassDef):
            source.members[node.name].update(bound_in(node.body), attributes_set_in(node))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            source.names.add(token.string)
        elif token.type == tokenize.COMMENT:
            source.comments.append((token.start[0], token.string))
        elif token.type == tokenize.STRING and token.start[0] not in prose:
            source.strings.append(token.string)
    return source


def definitions_in(node: ast.AST) -> Iterator[Definition]:
    """The module, and each class and function in it, however deep."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from definitions_in(inner)


@cache
def identifiers() -> frozenset[str]:
    """Every name of Python code."""
    return frozenset().union(*(read(path).names for path in sources()))


@cache
def words_of_other_files() -> frozenset[str]:
    """Every word of C, JavaScript, TOML, YAML and the like."""
    named = ("Makefile", "pyproject.toml", "docker-compose.yml", "Dockerfile", ".env.example")
    paths = [TOP / name for name in (*named, ".ci/run")]
    for folder in FOLDERS:
        for pattern in OTHER_CODE:
            paths += (TOP / folder).rglob(pattern)
    words: set[str] = set()
    for path in paths:
        words.update(WORD.findall(path.read_text(errors="replace")))
    return frozenset(words)


@cache
def words_of_strings() -> frozenset[str]:
    """Every word of Python's strings that are no docstrings."""
    words: set[str] = set()
    for path in sources():
        for string in read(path).strings:
            words.update(WORD.findall(string))
    return frozenset(words)


def is_known(word: str) -> bool:
    """Whether code has it. A capitalized word begins many strings: it must be an identifier."""
    if word in identifiers() or word in words_of_other_files() or word in METRIC_NAMES:
        return True
    return word in words_of_strings() and not CAPITALIZED.fullmatch(word)


@cache
def files() -> frozenset[str]:
    """Paths of all files, and every end of them: `wire/sse.py` and `sse.py`; files that code names.

    Most of the latter are those of a run folder.
    """
    ends = set()
    for path in sources():
        for string in read(path).strings:
            if not string.startswith('"""'):
                ends.update(match[0] for match in FILE.finditer(string))
    for folder, inner, names in os.walk(TOP):
        inner[:] = [name for name in inner if name not in NOT_OURS]
        above = Path(folder).relative_to(TOP).parts
        for name in [*inner, *names]:
            parts = (*above, name)
            ends.update("/".join(parts[start:]) for start in range(len(parts)))
    return frozenset(ends)


@cache
def members() -> dict[str, set[str]]:
    """What modules, packages and classes have, by their last name."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sources():
        for name, bound in read(path).members.items():
            found[name] |= bound
        found[path.parent.name].add(path.stem)
        found[path.parent.parent.name].add(path.parent.name)
    found["run"] |= found["RunFrames"]  # pages call what `open_run` returns `run`, as the room is
    return found


def bound_in(body: list[ast.stmt]) -> Iterator[str]:
    """Names that statements bind."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.If | ast.With | ast.Try):
            yield from bound_in(node.body)
        else:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    yield inner.id


def attributes_set_in(node: ast.AST) -> Iterator[str]:
    """As `self.name = ...` does."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield inner.attr


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each comment and each docstring."""
    source = read(path)
    yield from ((line, said) for line, said in source.comments if "noqa" not in said)
    yield from source.docstrings


def c_prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each comment in C."""
    text = path.read_text()
    for comment in re.finditer(r"/\*.*?\*/", text, re.DOTALL):
        yield text.count("\n", 0, comment.start()) + 1, comment[0]


def mentions_in_code() -> Iterator[Mention]:
    """Names between backticks, and dotted names of ours without."""
    ours = {path.stem for path in sources()} | {path.parent.name for path in sources()}
    in_c = [path for end in ("c", "h") for path in sorted((TOP / "harness").rglob(f"*.{end}"))]
    for path in [*sources(), *in_c]:
        at = str(path.relative_to(TOP))
        prose = c_prose_of if path in in_c else prose_of
        for line, said in prose(path):
            for name in QUOTED.findall(said):
                yield Mention(at, line, name)
            for name in DOTTED.findall(QUOTED.sub("", said)):
                if name.partition(".")[0] in ours or FILE.fullmatch(name):
                    yield Mention(at, line, name)


def mentions_in_pages() -> Iterator[Mention]:
    """Names between backticks, outside of examples."""
    for page in PAGES:
        at = str(page.relative_to(TOP))
        if at.startswith(HISTORY):
            continue
        fenced = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if line.lstrip().startswith("```"):
                fenced = not fenced
            if not fenced and not line.startswith("    "):
                yield from (Mention(at, number, name) for name in QUOTED.findall(line))


def is_found(name: str) -> bool:
    """Whether it names something, or does not look like a name."""
    name = name.removesuffix("()")
    if FILE.fullmatch(name):
        return name.removeprefix("./") in files() or name in FOREIGN["files"]
    if not NAME.fullmatch(name) or name in FOREIGN["words"]:
        return True
    first, *rest = name.split(".")
    if first in FOREIGN["packages"]:
        return True
    if not rest:
        return is_known(name) or name in files() or name in members()
    for owner, member in pairwise([first, *rest]):
        if owner in members():
            dotted = f"{owner}.{member}"
            return member in members()[owner] or dotted in files() or name in files()
    return all(is_known(word) for word in (first, *rest))


@pytest.mark.parametrize("where", [mentions_in_code, mentions_in_pages])
def test_every_name_is_of_something(where: object) -> None:
    """Mend the sentence, or add a name of another project to data/foreign_words.toml."""
    assert callable(where)
    lost = [mention for mention in where() if not is_found(mention.name)]
    assert [f"{path}:{line}: {name}" for path, line, name in lost] == []


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("RecordSource", True),
        ("Walk" + "er", False),
        ("slo.Slo", True),
        ("slo.Gone", False),
        ("metrics/slo.py", True),
        ("measure/" + "go" + "ne.py", False),
        ("result.json", True),
        ("go" + "ne.json", False),
        ("next_action()", True),
        ("gone" + "_for_ever()", False),
        ("--budget 90s", True),  # no name
    ],
)
def test_what_is_found(name: str, want: bool) -> None:
    """Names of code and files are; what nothing has is not."""
    assert is_found(name) == want
