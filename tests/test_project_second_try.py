"""Only a test marked `retry` is run again when it fails, by tests/conftest.py, and few may be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]
# Each fails as often as LEFT says.
CASES = """
import pytest

LEFT = {LEFT}


@pytest.mark.retry("a neighbor takes the processor")
@pytest.mark.parametrize("name", LEFT)
def test_marked(name, figure):
    figure(f"{{LEFT[name]}} left")
    LEFT[name] -= 1
    assert LEFT[name] < 0, f"{{name}} fails"


@pytest.fixture
def broken():
    assert False


@pytest.mark.retry("a fixture gets no second try")
def test_fixture(broken):
    pass


@pytest.mark.process
def test_unmarked():
    assert False
"""
MANY = """
import pytest
"""
ONE_MARKED = """

@pytest.mark.retry("no reason")
def test_{number}():
    pass
"""


def run_tests(folder: Path, code: str, test: str) -> tuple[int, list[str]]:
    """Pytest's exit code and the lines of its summary, with this project's conftest."""
    file = folder / "test_cases.py"
    file.write_text(code)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "conftest",
        "-c",
        str(TOP / "pyproject.toml"),
        "--rootdir",
        str(folder),
        f"{file}{test}",
    ]
    done = subprocess.run(command, cwd=TOP / "tests", capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    return done.returncode, [line.strip("= ") for line in said.splitlines()]


@pytest.mark.process
@pytest.mark.parametrize(
    ("left", "select", "code", "summary"),
    [
        ({"never": 0, "once": 1, "one more": 1}, "marked", 0, "3 passed, 2 tried again in "),
        ({"never": 0, "twice": 2}, "marked", 1, "1 failed, 1 passed, 1 tried again in "),
        # all pass in the end, and yet the run fails: three were tried again
        ({"once": 1, "one more": 1, "another": 1}, "marked", 1, "3 passed, 3 tried again in "),
        ({"never": 0}, "unmarked", 1, "1 failed in "),
        ({"never": 0}, "fixture", 1, "1 error in "),
    ],
)
def test_second_tries(
    left: dict[str, int],
    select: str,
    code: int,
    summary: str,
    tmp_path: Path,
) -> None:
    """A marked test's failure is named and forgiven once; more than two are too many."""
    got, lines = run_tests(tmp_path, CASES.format(LEFT=left), f"::test_{select}")
    assert got == code
    assert lines[-1][: len(summary)] == summary
    named = [line for line in lines if line.startswith("tried again: ")]
    marked = left if select == "marked" else {}
    failing = [name for name, times in marked.items() if times]
    wanted = [f"tried again: test_cases.py::test_marked[{name}]" for name in failing]
    assert sorted(line.partition("@")[0] for line in named) == sorted(wanted)
    figures = [line for line in lines if line.startswith("test_marked[")]
    # the figure of the last try alone
    last = [f"test_marked[{name}]: {max(times - 1, 0)}" for name, times in marked.items()]
    assert sorted(line.partition(" left")[0] for line in figures) == sorted(last)
    too_many = "3 were tried again, at most 2 may be" in lines
    assert too_many == (len(failing) == 3)


def test_few_may_be_marked(tmp_path: Path) -> None:
    """The sixth test with the mark stops the run."""
    code = MANY + "".join(ONE_MARKED.format(number=number) for number in range(6))
    got, lines = run_tests(tmp_path, code, "")
    assert got == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: 6 tests are marked `retry`: expected at most 5." in lines
