"""Tests run while `.ci/run` installs what some of them need: only these wait for it."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import pytest
from conftest import INSTALLED, wait_until_installed

TOP = Path(__file__).parents[1]
CI_RUN = (TOP / ".ci/run").read_text()
WAIT_S = 0.3


def function_of(name: str) -> str:
    """A function of `.ci/run`."""
    start = CI_RUN.index(f"\n{name}() {{\n") + 1
    return CI_RUN[start : CI_RUN.index("\n}\n", start) + 3]


@pytest.mark.parametrize("code", [0, 7])
def test_the_mark_goes_when_an_installation_has_ended(code: int, tmp_path: Path) -> None:
    """Also when it has failed; what it waits for sees the mark, and its exit code stays."""
    (tmp_path / ".ci-logs").mkdir()
    mark = tmp_path / ".ci-logs/thing.installing"
    mark.touch()
    command = f"with_mark thing sh -c 'ls .ci-logs; exit {code}'"
    script = f"set -euo pipefail\n{function_of('with_mark')}{command}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, "thing.installing\n")
    assert not mark.exists()


def test_a_test_waits_while_the_mark_is_there(tmp_path: Path) -> None:
    """And not for that of something else."""
    mark = tmp_path / "docker.installing"
    mark.touch()
    wait_until_installed("vllm", tmp_path)
    assert mark.exists()
    begun_s = time.monotonic()
    threading.Timer(WAIT_S, mark.unlink).start()
    wait_until_installed("docker", tmp_path)
    assert not mark.exists()
    assert time.monotonic() - begun_s >= WAIT_S


@pytest.mark.parametrize("name", INSTALLED)
def test_it_is_installed_beside_the_tests(name: str) -> None:
    """With that mark, and how it went is asked for after them."""
    begun = CI_RUN.index(f"install_beside {name} ")
    tests = CI_RUN.index("\nmake test-all ")
    assert begun < tests < CI_RUN.index(f"\narrived {name}\n")


def test_one_worker_waits_for_each_installation(request: pytest.FixtureRequest) -> None:
    """All tests that need it are in one group of xdist's."""
    groups = {
        (mark, tuple(group.args[0] for group in item.iter_markers("xdist_group")))
        for item in request.session.items
        for mark in INSTALLED
        if item.get_closest_marker(mark)
    }
    assert groups <= {(mark, (mark,)) for mark in INSTALLED}
