"""What a folder's tokens cost `report` in memory: next to nothing, for they are read in pieces."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
ALLOWED_MB = 40  # as objects and tables, a million more tokens took 130 MB


def peak(millions: float) -> tuple[int, int]:
    """(tokens, peak MB) of `report` on a made folder."""
    command = [sys.executable, "bench/folder.py", str(millions), "--levels", "4"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    found = re.search(r"([\d,]+) tokens: .* (\d+) MB at most", done.stdout)
    assert found, done.stdout
    return int(found[1].replace(",", "")), int(found[2])


@pytest.mark.process
def test_a_million_tokens_more(figure: Callable[[str], None]) -> None:
    """Seventy thousand against a million, results and reports included."""
    few, least = peak(0.07)
    many, most = peak(1.0)
    figure(f"report: {least} MB for {few:,} tokens, {most} MB for {many:,}")
    assert many - few > 900_000
    assert most - least < ALLOWED_MB
