"""What a command costs beside its load: what it imports, and its CPU time."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from report_folder import make

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEAVY = ("locust", "gevent", "numpy", "pandas", "dukpy", "pyarrow")
CASES = {
    # what is run: which of HEAVY it may import
    "import harness.cli": (),
    "import harness.cli.drill_work": ("numpy",),  # Locust, once the drill begins
    "import harness.senders.worker": ("locust", "gevent"),
    "import harness.reader.decoder_process": ("numpy",),
    "from harness.cli import main; main(['report', 'run'])": ("numpy", "dukpy", "pyarrow"),
}


@pytest.mark.parametrize("code", CASES)
def test_what_is_imported(code: str, tmp_path: Path) -> None:
    """Each takes a tenth of a second of CPU time or more, in every process that imports it."""
    make(tmp_path / "run", seconds=1, levels=(2, 4))
    spy = f"\nimport sys\nsys.stderr.write(' '.join(n for n in {HEAVY} if n in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code + spy], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert tuple(done.stderr.split()) == CASES[code]


@pytest.mark.process
def test_what_surrounds_a_small_load(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """Imports, probe, results and report of a run with hardly any load: CPU of all its processes.

    The aim is 3 s with compiled bytecode. A figure, no pass or fail: a busy machine takes more.
    """
    compiled = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = "run --embedded --users 1 --requests 2 --prompt-tokens 8 --output-tokens 4 --quiet"
    spent = []
    for out in (tmp_path / name for name in "ab"):  # the first may compile
        words = [sys.executable, "-m", "harness", *command.split(), "--out", str(out)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, capture_output=True, check=False, env=compiled)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert (out / "report.html").exists()
    figure(f"CPU of a run with hardly any load: {min(spent):.2f} s (aim: 3 s)")
