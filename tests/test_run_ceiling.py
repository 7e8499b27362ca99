"""The machine's ceiling: what the rungs say, and `doctor` on this machine."""

from __future__ import annotations

import numpy as np
import pytest
from study_process import harness

from harness.run.ceiling import Ceiling, Rung
from harness.run.checks import check_ceiling, check_plan
from harness.units import MS

TTFT = np.array([100.0, 101.0, 104.0]) * MS
ITL = np.array([20.0, 20.5, 22.0]) * MS


def rung(streams: int, ttft_off_ms: float = 0, itl_off_ms: float = 0, pace: float = 1.0) -> Rung:
    """32 tokens per 720 ms and stream, the p99 read so much later than sent."""
    tail = np.array([0, 0, MS])
    read = {"ttft": TTFT + ttft_off_ms * tail, "itl": ITL + itl_off_ms * tail}
    return Rung(streams, pace * streams * 32 / 0.72, 10.0, read, {"ttft": TTFT, "itl": ITL})


@pytest.mark.parametrize(
    ("rungs", "best", "more"),
    [
        ([rung(64), rung(128)], 128, True),
        ([rung(64), rung(128, ttft_off_ms=1.0)], 128, True),  # 1 % of 104 ms
        ([rung(64), rung(128, ttft_off_ms=1.1)], 64, False),
        ([rung(64), rung(128, itl_off_ms=0.23)], 64, False),  # 1 % of 22 ms
        ([rung(64), rung(128, 9), rung(256)], 64, False),  # what is right above a wrong one: luck
        ([rung(64), rung(128, 9, pace=0.5)], 64, True),  # the engine gave out first
        ([rung(64, 9), rung(128, 9)], None, False),
        ([], None, True),
    ],
)
def test_the_ceiling(rungs: list[Rung], best: int | None, more: bool) -> None:
    """The last level before the first wrong one, of those that the engine kept up with."""
    found = Ceiling(tuple(rungs))
    assert (found.best.streams if found.best else None, found.more) == (best, more)


@pytest.mark.parametrize(
    ("top", "users", "itl_ms", "want"),
    [
        (rung(128, 9), 40, 20, "fits one load process"),  # 2,000 of 64's 2,844 tokens/s
        (rung(128, 9), 64, 20, "--processes 2"),  # 3,200
        (rung(128, 9), 500, 10, "--processes 22"),  # 50,000 / 2,844 / 0.8 = 21.97
        (rung(128, pace=0.5), 500, 10, "every level is checked during a run"),
        (rung(64, 9), 500, 10, "see the line above"),
    ],
)
def test_a_plan(top: Rung, users: int, itl_ms: float, want: str) -> None:
    """By tokens/s and by streams, with a fifth to spare."""
    rungs = (rung(64), top) if top.streams > 64 else (top,)
    said = check_plan(Ceiling(rungs), users, round(itl_ms * MS))
    assert want in f"{said.what} -> {said.remedy}"


def test_no_level_at_all_is_a_warning() -> None:
    """A machine that is too busy is told so."""
    assert "not even 64 streams" in check_ceiling(Ceiling((rung(64, 9),))).what


@pytest.mark.realtime
def test_doctor_measures(figure) -> None:
    """It ends well and says what this machine holds."""
    done = harness("doctor", "--users", "100000", "--itl", "1ms")
    figure(" ".join(done.stdout.split("timing")[-1].split()))
    assert done.returncode == 0, done.stderr
    timed, planned = (line.split() for line in done.stdout.splitlines()[-2:])
    assert (timed[1], planned[:2]) == ("timing", ["warn", "plan"])
