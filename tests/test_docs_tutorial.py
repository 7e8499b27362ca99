"""docs/tutorial.md: every command of it runs, and prints what the page shows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from study_process import check_code
from tutorial_page import PAGE, Shown, blocks, run, without_figures

# On a busy machine the search may end, and blames the client with right.
CLIENT_IS_LATE = "the load generator is the bottleneck"


@pytest.mark.realtime
def test_every_command_prints_what_the_page_shows(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """In the page's order, in one folder: each line of it, but for the figures."""
    page = blocks(PAGE.read_text())
    assert sum(isinstance(block, Shown) for block in page) == 7
    for block in page:
        if not isinstance(block, Shown):
            name, text = block
            (tmp_path / name).write_text(text)
            continue
        if block.command.startswith("jq ") and not shutil.which("jq"):
            continue
        printed = run(block.command, tmp_path)
        check_code(printed.code, printed.stdout + printed.stderr, 0)
        if printed.code or CLIENT_IS_LATE in printed.stdout:
            figure(f"the client was too busy for: {block.command}")
            return
        got = without_figures(printed.stdout)
        lacking = [line for line in without_figures(block.output) if line not in got]
        assert lacking == [], printed.stdout
