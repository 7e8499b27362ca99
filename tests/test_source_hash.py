"""What changes the hash of the code that a stored result was computed with, and what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import source_hash

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ENTRY = """
from inner import double, rules
import other

if TYPE_CHECKING:
    import elsewhere

def entry(x: int) -> int:
    '''Its docstring.'''
    return double(x) + rules.RULE(x) + other.HALF

def unused():
    return 1
"""
INNER = "FACTOR = 2\ndef double(x):\n    return FACTOR * x\n"
RULES = "def one(x):\n    return x\nRULE = one\n"
OTHER = "HALF = 0.5\nWHOLE = 1\n"

CHANGES = {  # file, old, new -> whether the hash changes
    "a docstring": ("entry", "Its docstring", "Others", False),
    "a comment": ("entry", "def unused", "# why\ndef unused", False),
    "an annotation": ("entry", "x: int", "x: float", False),
    "an import for the type checker": ("entry", "elsewhere", "nowhere", False),
    "a function that is not called": ("entry", "return 1", "return 2", False),
    "a constant that is not used": ("other", "WHOLE = 1", "WHOLE = 2", False),
    "a constant of the function that is called": ("inner/__init__", "2", "3", True),
    "the function itself": ("entry", "+ rules", "- rules", True),
    "a function in a table of an imported module": ("inner/rules", "return x", "return -x", True),
    "an attribute of an imported module": ("other", "0.5", "0.25", True),
}


@pytest.fixture
def hash_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """The hash of `entry` as the files are now."""
    monkeypatch.setattr(source_hash, "FOLDERS", (tmp_path,))
    (tmp_path / "inner").mkdir()
    for name, text in {
        "entry": ENTRY,
        "inner/__init__": INNER,
        "inner/rules": RULES,
        "other": OTHER,
    }.items():
        (tmp_path / f"{name}.py").write_text(text)

    def now() -> str:
        source_hash.read.cache_clear()
        return source_hash.source_hash("entry", "entry")

    return now


def test_what_changes_the_hash(hash_of: Callable[[], str], tmp_path: Path) -> None:
    """What the function does, wherever it is written; not how it is explained."""
    before = hash_of()
    got = {}
    for what, (name, old, new, _) in CHANGES.items():
        path = tmp_path / f"{name}.py"
        text = path.read_text()
        assert old in text, what
        path.write_text(text.replace(old, new))
        got[what] = hash_of() != before
        path.write_text(text)
    want = {what: change for what, (*_, change) in CHANGES.items()}
    assert got == want
    source_hash.read.cache_clear()


def test_a_move_changes_nothing(hash_of: Callable[[], str], tmp_path: Path) -> None:
    """A definition may stand in any file."""
    before = hash_of()
    (tmp_path / "moved.py").write_text(INNER)
    (tmp_path / "inner/__init__.py").write_text("from moved import double\n")
    assert hash_of() == before
    source_hash.read.cache_clear()
