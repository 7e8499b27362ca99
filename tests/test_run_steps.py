"""Levels of a test whose users Locust decides about: own shapes, ramps, pauses, foreign users."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from measure_tables import SECOND, record

from harness import open_run
from harness.compare.compare_folders import compare_folders
from harness.core.load import Users
from harness.core.states import Purpose, StopRule
from harness.metrics.record_source import RecordsAsOf, RecordSource
from harness.records import names
from harness.records.folder_writer import RecordWriter, RunFolder
from harness.records.record_table import RecordTable
from harness.records.runinfo import run_info
from harness.report.answer import build_answer
from harness.report.report_data import ReportData
from harness.run.results import write_results
from harness.search.controller import KneeController
from harness.search.held_levels import in_turn
from harness.search.locust_levels import (
    ASKED,
    AskedUsers,
    asked_users,
    level_line,
    locust_levels,
    unheld_sentence,
    users_pause,
)
from harness.search.next_level import Hold, SearchPlan

if TYPE_CHECKING:
    from harness.records.request_record import RequestRecord

LIFE_MS = 100


def load(*steps: tuple[int, float, float], pause_ms: float = 0) -> RecordTable:
    """What `requests` has, as columns."""
    return RecordTable.from_records(requests(*steps, pause_ms=pause_ms))


def requests(*steps: tuple[int, float, float], pause_ms: float = 0) -> list[RequestRecord]:
    """Each step: so many users from then to then (s), who send again when an answer has ended."""
    found = []
    for users, begin_s, end_s in steps:
        for user in range(users):
            at_ms = begin_s * 1000 + user
            at_ms += user * pause_ms / users  # each in its own time
            while at_ms < end_s * 1000:
                one = record(len(found), at_ms, [at_ms + LIFE_MS / 2], at_ms + LIFE_MS)
                found.append(replace(one, user=user))
                at_ms += LIFE_MS + pause_ms
    return found


def asked(*steps: tuple[int, float, float, float | None]) -> list[AskedUsers]:
    """So many users from then to then (s), all there at that time; None: never."""
    asked = []
    for users, since, until, there in steps:
        there_ns = -1
        n_there = 0
        if there is not None:
            there_ns = round(there * SECOND)
            n_there = users
        since_ns = round(since * SECOND)
        until_ns = round(until * SECOND)
        asked.append(AskedUsers(users, since_ns, until_ns, there_ns, n_there))
    return asked


SHAPE = load((2, 0, 5), (6, 5, 12), (1, 12, 17))
OF_SHAPE = asked((2, 0, 5, 1), (6, 5, 12, 6), (1, 12, 17, 13))


def windows(table: RecordTable, of: list[AskedUsers]) -> list[tuple[int, float, float]]:
    """(users, settled, end) of each level; in seconds, to a tenth."""
    found = [level.window for level in locust_levels(table, of)]
    assert [one.index for one in found] == [*range(len(found))]
    rows = []
    for level in found:
        begin_s = round(level.settled_ns / SECOND, 1)
        end_s = round(level.end_ns / SECOND, 1)
        rows.append((level.load.users, begin_s, end_s))
    return rows


@pytest.mark.parametrize(
    ("table", "of", "want", "unheld"),
    [
        # two requests per user after the last change, and five who end theirs first
        (SHAPE, OF_SHAPE, [(2, 0.2, 5.0), (6, 5.2, 12.0), (1, 12.3, 16.9)], ""),
        # six were never all there
        (
            SHAPE,
            asked((2, 0, 5, 1), (6, 5, 12, None), (1, 12, 17, 13)),
            [(2, 0.2, 5.0), (1, 12.3, 16.9)],
            "asked for 2, 6, 1 users, and only 2 of these 3 numbers were held",
        ),
        (
            SHAPE,
            asked((2, 0, 5, 1), (6, 5, 12, None), (1, 12, 17, None)),
            [(2, 0.2, 5.0)],
            "only 1 of these 3 numbers was held",
        ),
        # a ramp of a user each tenth of a second
        (
            load(*((n, n / 10, (n + 1) / 10) for n in range(1, 11))),
            asked(*((n, n / 10, n / 10 + 0.09, n / 10 + 0.05) for n in range(1, 11))),
            [],
            "asked for 1, 2, 3, 4, 5, 6, 7, 8, ... users, and none was held",
        ),
        # -u 4, once all are there
        (load((4, 0, 3)), asked((4, 0, 3, 1)), [(4, 0.2, 2.9)], ""),
        # one number, too short to settle: all that there is
        (load((4, 0, 0.15)), asked((4, 0, 0.15, 0.1)), [(4, 0.0, 0.1)], ""),
        # -u 100 -r 1, stopped at four
        (load((4, 0, 3)), asked((100, 0, 3, None)), [], "asked for 100 users, and none was held"),
        # what was asked for is not known: as before
        (SHAPE, [], [(6, 5.2, 16.9)], ""),
        (load(), OF_SHAPE, [], "none was held"),
    ],
)
def test_each_number_of_users_is_a_level(
    table: RecordTable, of: list[AskedUsers], want: list[tuple[int, float, float]], unheld: str
) -> None:
    """Where it was held; a sentence names the numbers that were not."""
    assert windows(table, of) == want
    sentence = unheld_sentence(of, len(want))
    assert unheld in sentence
    assert bool(sentence) == bool(unheld)


@pytest.mark.parametrize(("pause_ms", "want"), [(0, False), (400, True)])
def test_users_who_pause_are_no_concurrency(pause_ms: float, want: bool) -> None:
    """Five users who are in flight a fifth of the time are five users all the same."""
    table = load((5, 0, 10), pause_ms=pause_ms)
    (level,) = locust_levels(table, asked((5, 0, 10, 1)))
    assert level.window.load.count == 5
    assert users_pause(table, [level.window]) == want


def test_what_ended_json_says() -> None:
    """Read back; without users, or with rows of another version, there is nothing."""
    rows = [asdict(one) for one in OF_SHAPE]
    before = asdict(AskedUsers(0, 0, 1))
    assert asked_users({ASKED: [before, *rows]}) == OF_SHAPE
    assert asked_users({}) == []
    assert asked_users({ASKED: [{"asked": "x"}]}) == []


def test_the_line_of_a_level() -> None:
    """As `run` writes it."""
    line = level_line(locust_levels(SHAPE, OF_SHAPE)[1])
    assert line["index"] == 1
    assert line["users"] == 6
    assert line["decision"] == "held"
    assert line["audited"] is False


class Known:
    """Records that are all there, however early one asks."""

    def __init__(self, table: RecordTable) -> None:
        self.all = table

    def table(self, from_ns: int, horizon_ns: int) -> RecordSource:
        return RecordsAsOf(self.all, from_ns, horizon_ns)

    def ended(self, from_ns: int, horizon_ns: int) -> tuple[int, int]:
        done = self.all.done_ns
        return int(((done >= from_ns) & (done <= horizon_ns)).sum()), 0


@pytest.mark.parametrize(
    ("users", "rows_s", "want"),
    [
        (1, 0.9, [(1, 0.2, 7)]),  # nine rows: two settle the level
        (3, 0.5, [(3, 0.2, 7)]),
        (9, 0.1, []),  # a row for each: nothing can settle
        (3, 0.2, []),  # six rows, and nothing was sent after they had ended
    ],
)
def test_data_that_ends_early(
    users: int, rows_s: float, want: list[tuple[int, float, int]]
) -> None:
    """A server may answer all rows before the controller has looked twice: the records tell.

    Of each level the users, when it had settled, and the requests sent from then on.
    """
    table = load((users, 0, rows_s))
    hold = Hold(Users(users), Purpose.hold, StopRule.requests, 0, len(table))
    plan = SearchPlan((), min_users=users, max_users=users)
    controller = KneeController(plan, Known(table), choose=in_turn([hold]))
    for second in range(3):
        controller.tick(second * SECOND, users, known_ns=second * SECOND)
    controller.close(3 * SECOND, data_ended=True)
    windows = [level.window for level in controller.levels]
    got = []
    for one in windows:
        inside = (table.sent_ns >= one.settled_ns) & (table.sent_ns <= one.end_ns)
        begin_s = round(one.settled_ns / SECOND, 1)
        got.append((one.load.users, begin_s, int(inside.sum())))
    assert got == want


def locust_folder(path: Path, made: list[RequestRecord], of: list[AskedUsers]) -> Path:
    """As a live run leaves it."""
    folder = RunFolder.create(path)
    plan = SearchPlan(()).to_json()
    config = {"kind": "locust", "plan": plan, "slos": []}
    folder.write_json(names.RUN, run_info(config, seeds={}, server={"model": "m"}))
    folder.lines(names.LEVELS).close()
    writer = RecordWriter(folder, 0)
    writer.put(made)
    writer.close()
    rows = [asdict(one) for one in of]
    folder.write_json(names.ENDED, {"interrupted": False, "invalid": "", ASKED: rows})
    return folder.path


def test_the_folder_of_a_locust_test(tmp_path: Path) -> None:
    """Levels and phases in its frames, users who pause as users, and `compare` takes it."""
    made = requests((2, 0, 20), (6, 20, 40), pause_ms=400)
    of = asked((2, 0, 20, 1), (6, 20, 40, 21), (9, 40, 41, None))
    folders = [locust_folder(tmp_path / name, made, of) for name in "ab"]
    for folder in folders:
        result = write_results(folder).result
        assert result.status == "measured"
        assert result.exit_code == 0
        assert result.unit == "user"
        assert [level.users for level in result.levels] == [2, 6]
        assert "asked for 2, 6, 9 users, and only 2 of these 3 numbers" in result.unheld
    frames = open_run(folders[0])
    assert frames.levels.users.tolist() == [2, 6]
    phases = frames.requests.groupby(["level", "phase"]).size()
    assert (phases[0, "measured"], phases[1, "measured"]) > (60, 200)
    found = compare_folders(folders[0], folders[1], 0.05)
    assert {one.users for one in found.differences} == {2, 6}


def test_a_report_amid_a_locust_test(tmp_path: Path) -> None:
    """What it writes is of the records so far; the report at the end is of all."""
    made = requests((2, 0, 20), (6, 20, 40))
    path = locust_folder(tmp_path / "run", made[: len(made) // 4], [])
    (path / names.ENDED).unlink()
    assert [level.users for level in write_results(path).result.levels] == [2]
    writer = RecordWriter(RunFolder(path), 0)
    writer.put(made[len(made) // 4 :])
    writer.close()
    steps = asked((2, 0, 20, 1), (6, 20, 40, 21))
    rows = [asdict(step) for step in steps]
    RunFolder(path).write_json(names.ENDED, {"interrupted": False, "invalid": "", ASKED: rows})
    assert [level.users for level in write_results(path).result.levels] == [2, 6]
    assert open_run(path).levels.users.tolist() == [2, 6]


@pytest.mark.parametrize(
    ("made", "of", "said"),
    [
        (requests((1, 0, 0.05)), asked((1, 0, 0.05, 0)), "too short: 1 request was sent in"),
        (
            requests((4, 0, 3)),
            asked((100, 0, 3, None)),
            "Locust was asked for 100 users, and none was held until",
        ),
    ],
)
def test_what_is_said_of_too_little(
    made: list[RequestRecord], of: list[AskedUsers], said: str, tmp_path: Path
) -> None:
    """No figures of a single request, and none of users that were never all there."""
    run, result, _ = write_results(locust_folder(tmp_path / "run", made, of))
    text = build_answer(ReportData(run, result)).text
    assert said in text
    assert "ms" not in text
