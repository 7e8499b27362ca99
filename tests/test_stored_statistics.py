"""What `make statistics` has stored is of this code; that it says so, and goes on where it was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import stored_statistics
from stored_statistics import (
    STATISTICS,
    Answer,
    Statistic,
    again,
    check,
    compute,
    main,
    stale,
    timed,
)

if TYPE_CHECKING:
    from pathlib import Path

LIVE = [name for name, statistic in STATISTICS.items() if statistic.live]


@pytest.mark.parametrize("name", STATISTICS)
def test_the_stored_answers_are_of_this_code(name: str) -> None:
    """Of the code that a statistic depends on, its cases and its files."""
    assert stale(name) == [], (
        f"its code has changed: run `make statistics NAMES={name}`, `make docs`"
    )


@pytest.mark.parametrize("name", LIVE)
def test_a_few_answers_again(name: str) -> None:
    """Computed now: those that are stored, which tests of each subject judge."""
    now, then = again(name)
    assert agrees(now, then), f"{now}, not {then}: run `make statistics NAMES={name}`, `make docs`"


def agrees(now: object, then: object) -> bool:
    """The same answer; numbers to 12 digits, as processors add up in an order of their own."""
    if isinstance(now, dict) and isinstance(then, dict):
        same_keys = now.keys() == then.keys()
        return same_keys and all(agrees(now[key], then[key]) for key in now)
    if isinstance(now, list | tuple) and isinstance(then, list | tuple):
        return len(now) == len(then) and all(map(agrees, now, then))
    if isinstance(now, float) and isinstance(then, float):
        return now == pytest.approx(then, rel=1e-12, nan_ok=True)
    return type(now) is type(then) and now == then


@pytest.mark.parametrize(
    ("now", "then", "want"),
    [
        ({"a": [1.0, "x"]}, {"a": [1.0 + 1e-14, "x"]}, True),
        ({"a": [1.0, "x"]}, {"a": [1.0 + 1e-9, "x"]}, False),
        ({"a": 1.0}, {"a": 1.0, "b": 2.0}, False),
        ([1.0], [1.0, 2.0], False),
        (float("nan"), float("nan"), True),
        (1, True, False),
        (8, 9, False),
    ],
)
def test_what_agrees(now: object, then: object, want: bool) -> None:
    """The last digits of a sum may differ, and nothing else."""
    assert agrees(now, then) == want


def double(number: int) -> int:
    """An answer."""
    return 2 * number


def in_turn(asked: list[tuple[str, str]]) -> list[Answer]:
    """Without processes."""
    return [timed(*one) for one in asked]


def test_only_what_is_missing_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Answers of this code are kept; those of other code go."""
    statistics = {"doubles": Statistic(double, lambda: [(1,), (2,), (3,)], 1)}
    monkeypatch.setattr(stored_statistics, "STATISTICS", statistics)
    monkeypatch.setattr(stored_statistics, "STORED", tmp_path)
    compute(["doubles"], in_turn)
    path = tmp_path / "doubles.json"
    kept = json.loads(path.read_text())
    assert kept["answers"] == {"1": 2, "2": 4, "3": 6}
    path.write_text(json.dumps(kept | {"answers": {"1": -1, "3": -3}}))
    assert stale("doubles") == ["2"]
    compute(["doubles"], in_turn)
    assert json.loads(path.read_text())["answers"] == {"1": -1, "2": 4, "3": -3}
    path.write_text(json.dumps({"source": "another", "answers": {"1": -1, "2": -2, "3": -3}}))
    assert stale("doubles") == ["1", "2", "3"]
    assert stored_statistics.stored("doubles") == {1: -1, 2: -2, 3: -3}
    compute(["doubles"], in_turn)
    compute(["doubles"], in_turn)
    assert json.loads(path.read_text()) == kept
    said = capsys.readouterr().out.splitlines()
    counted = [line.rpartition(",")[0] for line in said[:3]]
    assert counted == ["doubles: 3 cases", "doubles: 1 cases", "doubles: 3 cases"]
    assert said[3] == "doubles: of this code"


@pytest.mark.parametrize(
    ("wrong", "is_right", "left"),
    [({}, True, []), ({"7": -7}, False, [str(number) for number in range(10)])],
)
def test_a_change_that_should_change_no_answer(
    wrong: dict[str, int],
    is_right: bool,
    left: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where all that were drawn are as stored, the answers are current; else nothing is written."""
    numbers = [(number,) for number in range(10)]
    statistics = {"doubles": Statistic(double, lambda: numbers, 1)}
    monkeypatch.setattr(stored_statistics, "STATISTICS", statistics)
    monkeypatch.setattr(stored_statistics, "STORED", tmp_path)
    monkeypatch.setattr(stored_statistics, "CHECKED_SHARE", 1)
    answers = {str(number): 2 * number for number in range(10)} | wrong
    path = tmp_path / "doubles.json"
    path.write_text(json.dumps({"source": "another", "answers": answers}))
    assert check(["doubles"], in_turn) is is_right
    assert stale("doubles") == left
    checked = {"source": stored_statistics.source("doubles"), "answers": 10}
    assert json.loads(path.read_text()).get("checked") == (checked if is_right else None)
    assert json.loads(path.read_text())["answers"] == answers


def test_a_name_that_is_none() -> None:
    """Is refused with those that are."""
    with pytest.raises(SystemExit, match=r"NAMES has wishes: expected some of .*knees"):
        main(["wishes"])
