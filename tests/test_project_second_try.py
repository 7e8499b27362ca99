"""A test that is not pure and fails is run again, by tests/conftest.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]
# Each fails as often as LEFT says; `day` is set up once, except for what failed as the file's last.
PURE = """
def test_pure():
    assert False
"""
CASES = """
import pytest

LEFT = {"fixture": 1, "first": 0, "once": 1, "twice": 2, "never": 0, "last": 1}
DAYS = []


def check(name):
    LEFT[name] -= 1
    assert LEFT[name] < 0, f"{name} fails"


@pytest.fixture(scope="module")
def day():
    DAYS.append("a day")
    check("fixture")


@pytest.mark.process
@pytest.mark.xdist_group("day")
@pytest.mark.parametrize("name", ["first", "once", "twice", "never", "last"])
def test_day(name, day, figure):
    figure(f"day {len(DAYS)}, {LEFT[name]} left")
    check(name)
"""
AGAIN = ("first", "once", "twice", "last")
FIGURES = {"first": "day 2, 0 left", "once": "day 2, 0 left", "twice": "day 2, 1 left",
           "never": "day 2, 0 left", "last": "day 3, 0 left"}  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize("workers", ["", "-n 2 --dist loadgroup"])
def test_a_second_try(workers: str, tmp_path: Path) -> None:
    """One failure is named and forgiven, two are not; a pure test has one try."""
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / "test_pure.py").write_text(PURE)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-c", str(TOP / "pyproject.toml"),
               "--rootdir", str(tmp_path), str(tmp_path), *workers.split()]  # fmt: skip
    done = subprocess.run(command, cwd=TOP / "tests", capture_output=True, text=True, check=False)
    lines = [line.strip("= ") for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (1, "")
    assert lines[-1].startswith("2 failed, 4 passed, 4 tried again in ")
    again = [line for line in lines if line.startswith("tried again: ")]
    assert [line.partition("@")[0] for line in again] == [
        f"tried again: test_cases.py::test_day[{name}]" for name in AGAIN
    ]
    figures = lines[lines.index("figures") + 1 :][: len(FIGURES)]
    assert sorted(figures) == sorted(f"test_day[{name}]: {said}" for name, said in FIGURES.items())
