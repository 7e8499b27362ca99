"""docs/tutorial.md: every command of it runs, and prints what the page shows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from study_process import check_code
from tutorial_page import PAGE, Shown, blocks, run_all, without_figures

from harness.errors import NoKnee

# On a busy machine the search may end, and blames the client with right. A drill may not decide:
# the latencies of a moment in which the machine did something else count as one.
CLIENT_IS_LATE = "the load generator is the bottleneck"
UNDECIDED = "more requests would decide"


@pytest.mark.realtime
def test_every_command_prints_what_the_page_shows(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """In one folder: each line of it, but for the figures."""
    page = blocks(PAGE.read_text())
    assert sum(isinstance(block, Shown) for block in page) == 7
    disturbed: list[Shown] = []
    for shown, printed in run_all(page, tmp_path, len(page)):
        no_jq = shown.command.startswith("jq ") and not shutil.which("jq")
        if no_jq or any(shown.needs(earlier) for earlier in disturbed):
            continue
        wanted = (0, NoKnee.exit_code) if UNDECIDED in printed.stdout else (0,)
        check_code(printed.code, printed.stdout + printed.stderr, *wanted)
        if printed.code or CLIENT_IS_LATE in printed.stdout:
            figure(f"the machine was too busy for: {shown.command}")
            disturbed.append(shown)
            continue
        got = without_figures(printed.stdout)
        lacking = [line for line in without_figures(shown.output) if line not in got]
        assert lacking == [], printed.stdout


def test_what_waits_for_what() -> None:
    """A command names the folders that it needs; the searches and the drill need nothing."""
    commands = [block for block in blocks(PAGE.read_text()) if isinstance(block, Shown)]
    needed = [
        [earlier.out for earlier in commands[:number] if shown.needs(earlier)]
        for number, shown in enumerate(commands)
    ]
    assert needed == [[], ["knee-8"], [], ["knee-8", "knee-16"], ["knee-16"], ["knee-16"], []]
