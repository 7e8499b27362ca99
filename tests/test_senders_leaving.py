"""How a load process ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEAVE = "import sys; from harness.core.fast_exit import leave; {}; leave()"


@pytest.mark.parametrize(
    ("last", "want"),
    [
        ("sys.stdout.write('all')", "all"),  # to a pipe: buffered until it leaves
        ("sys.stdout = None", ""),
        ("sys.stdout.close()", ""),
    ],
)
def test_leaving(last: str, want: str) -> None:
    """What was printed is there, the code is 0, and whatever runs at exit is left out."""
    command = [sys.executable, "-c", LEAVE.format(last)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout == want
    assert done.stderr == ""
