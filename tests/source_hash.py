"""A hash over the code that a function depends on, so that a stored result can tell that it is old.

Strategy: from the function's own definition, follow every name that it uses: to a definition at the
top of the same module, or through an import into another module of this repository. What is hashed
is the set of definitions that were reached, as syntax trees without docstrings, comments and type
annotations. So prose, formatting, a move to another file and code that the function never reaches
change nothing; a constant, a renamed variable or one more branch does.

What this cannot see: a class that is made from a string, and the versions of other packages.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
# where an absolute import may find a module of ours
FOLDERS = (ROOT, ROOT / "tests")


class Module(NamedTuple):
    """What stands at a module's top: statements by the name that they bind, and imports."""

    definitions: dict[str, list[ast.stmt]]
    imports: dict[str, tuple[str, str]]  # name -> (module, name there); "": the module itself


def source_hash(module: str, name: str, data: str = "") -> str:
    """The hash of a definition of a module, of all that it uses, and of some data."""
    texts = sorted(text_of(statement) for statement in reached(module, name))
    return hashlib.sha256("\n".join([*texts, data]).encode()).hexdigest()


def reached(module: str, name: str) -> Iterator[ast.stmt]:
    """Each statement that binds this name, or a name that such a statement uses."""
    wanted, seen = [(module, name)], set()
    while wanted:
        here = wanted.pop()
        if here in seen:
            continue
        seen.add(here)
        where, name = here
        found = read(where)
        if found is None:  # numpy, the standard library
            continue
        if name in found.imports:
            wanted.append(found.imports[name])
        for statement in found.definitions.get(name, ()):
            yield statement
            wanted += [(where, used) for used in names_in(statement)]
            # `import a.b` or `from a import b` may bind a module: then b.c is c of that module
            wanted += [
                ("{}.{}".format(*found.imports[value]).rstrip("."), attribute)
                for value, attribute in attributes_in(statement)
                if value in found.imports
            ]


@cache
def read(name: str) -> Module | None:
    """A module of this repository, None for others."""
    file = name.replace(".", "/")
    paths = [folder / (file + end) for folder in FOLDERS for end in (".py", "/__init__.py")]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None
    module = Module({}, {})
    for node in top_of(ast.parse(path.read_text()).body):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module.imports[alias.asname or alias.name] = (node.module or "", alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                module.imports[alias.asname or alias.name] = (alias.name, "")
        else:
            for bound in bound_by(node):
                module.definitions.setdefault(bound, []).append(node)
    return module


def top_of(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Its statements, and those in `try` and `if`; what is there for the type checker is not."""
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test) != "TYPE_CHECKING":
            yield from top_of([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from top_of([*node.body, *(n for h in node.handlers for n in h.body)])
        elif not isinstance(node, ast.If):
            yield node


def bound_by(node: ast.stmt) -> list[str]:
    """The names that a statement at a module's top defines, or changes in place."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    return [
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    ]


@cache
def names_in(node: ast.AST) -> set[str]:
    """Every name that the code uses, annotations left out."""
    return {n.id for n in walk(node) if isinstance(n, ast.Name)}


@cache
def attributes_in(node: ast.AST) -> set[tuple[str, str]]:
    """Every `name.attribute`."""
    return {
        (n.value.id, n.attr)
        for n in walk(node)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)
    }


ANNOTATIONS = {"annotation", "returns", "type_params", "type_comment"}


def parts_of(node: ast.AST) -> Iterator[tuple[str, object]]:
    """The fields that mean something when it runs; empty ones are left out, as Pythons differ."""
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(value, list):
            first = value[0] if value else None
            text = first.value if isinstance(first, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield name, value[1:]
                continue
        if name not in ANNOTATIONS and value not in (None, []):
            yield name, value


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """As `ast.walk`, without annotations and docstrings."""
    yield node
    for _, value in parts_of(node):
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.AST):
                yield from walk(one)


@cache
def text_of(statement: ast.stmt) -> str:
    """The same for each statistic that reaches it."""
    return dump(statement)


def dump(node: object) -> str:
    """As `ast.dump`, without annotations and docstrings."""
    if isinstance(node, list):
        return f"[{' '.join(map(dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    inner = " ".join(f"{name}={dump(value)}" for name, value in parts_of(node))
    return f"{type(node).__name__}({inner})"
