"""requests.parquet holds what the records held, in words that pandas understands."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from measure_tables import MS, record
from random_tables import random_records

from harness.metrics.latency_figures import blocked_windows, sample_figures
from harness.metrics.metrics import LATENCIES
from harness.records import names
from harness.records.folder_reader import read_run
from harness.records.folder_writer import RecordWriter, RunFolder
from harness.records.record_table import RecordTable
from harness.records.request_record import Outcome, RequestRecord, ns_array
from harness.records.runinfo import run_info
from harness.run import run_frames
from harness.run.run_frames import open_run, parquet_writer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

START = 1_790_000_000_000_000_000
# chosen, settled, end, judged
WINDOWS = {4: (1_000, 2_000, 3_000, 3_500), 8: (3_500, 4_000, 5_000, 5_500)}


def level_line(index: int, users: int, window: tuple[int, int, int, int]) -> dict[str, Any]:
    """A level as the run writes it; its instants are given in ms."""
    chosen, settled, end, judged = (at * MS for at in window)
    return {
        "index": index,
        "users": users,
        "purpose": "up",
        "chosen_ns": chosen,
        "start_ns": chosen,
        "settled_ns": settled,
        "end_ns": end,
        "judged_ns": judged,
    }


def write(
    path: Path,
    records: Iterable[RequestRecord],
    windows: dict[int, tuple[int, int, int, int]] = WINDOWS,
    status: str = "found",
) -> RunFolder:
    """A folder of these records and levels, {users: instants in ms}."""
    folder = RunFolder.create(path)
    writer = RecordWriter(folder, 0)
    writer.put(list(records))
    writer.close()
    lines = folder.lines(names.LEVELS)
    for index, (users, window) in enumerate(windows.items()):
        lines.append(level_line(index, users, window))
    lines.close()
    folder.write_json(names.ENDED, {"status": status})
    with parquet_writer(folder) as write_piece:
        read_run(path, write_piece)
    return folder


def read(path: Path) -> pd.DataFrame:
    """As anybody reads it."""
    return pd.read_parquet(path / names.PARQUET)


def row(record: RequestRecord, path: Path) -> dict[str, Any]:
    """What the file says of one request; None where it is null."""
    write(path, [record])
    (found,) = pq.read_table(path / names.PARQUET).to_pylist()
    return found


def at(ns: int | None) -> pd.Timestamp | None:
    """A time as the file has it."""
    return None if ns is None else pd.Timestamp(ns, tz="UTC")


FULL = RequestRecord(
    worker=1,
    number=7,
    user=3,
    sent_ns=START,
    done_ns=START + 80 * MS,
    outcome=Outcome.ok,
    scheduled_ns=START - MS,
    connect_ns=2 * MS,
    head_ns=START + 5,
    first_event_ns=START + 6,
    status=200,
    finish_reason="length",
    planned_tokens=3,
    prompt_tokens=11,
    output_tokens=3,
    cached_tokens=0,
    answer_index=1,
    session=2,
    turn=4,
    think_ns=1_500 * MS,
    mix_row=1,
    planned_prompt=12,
    name="summarize",
    at_ns=ns_array([START + 20 * MS, START + 50 * MS, START + 70 * MS]),
    not_before_ns=ns_array([START + 20 * MS, START + 45 * MS, START + 70 * MS]),
    tokens=ns_array([1, 2, 1]),
)
LATENCY_KEYS = ("ttft", "ttfot", "tpot", "e2e")
COLUMNS = tuple(f"{key}_ms" for key in LATENCY_KEYS)


def test_a_request_in_full(tmp_path: Path) -> None:
    """Every column of one request, with its arithmetic."""
    assert row(FULL, tmp_path) == {
        "worker": 1,
        "number": 7,
        "user": 3,
        "session": 2,
        "turn": 4,
        "mix_row": 1,
        "name": "summarize",
        "level": 1,
        "users": 8,
        "phase": "drain",
        "scheduled_at": at(START - MS),
        "sent_at": at(START),
        "first_token_at": at(START + 20 * MS),
        "last_token_at": at(START + 70 * MS),
        # from the schedule, 1 ms before it was sent
        "done_at": at(START + 80 * MS),
        "ttft_ms": 21,
        "ttfot_ms": 51,
        # 50 ms for the three tokens after the first event, to the nanosecond
        "tpot_ms": 16.666667,
        "e2e_ms": 81,
        "think_ms": 1_500,
        "connect_ms": 2,
        "outcome": "ok",
        "error": None,
        "finish_reason": "length",
        "status": 200,
        "planned_tokens": 3,
        "planned_prompt": 12,
        "prompt_tokens": 11,
        "output_tokens": 3,
        "cached_tokens": 0,
        "token_at_ns": [20 * MS, 50 * MS, 70 * MS],
        "token_not_before_ns": [20 * MS, 45 * MS, 70 * MS],
        "tokens": [1, 2, 1],
    }


OPEN = {"outcome": "open", "error": None, "done_at": None}
NO_TOKEN = {"first_token_at": None, "last_token_at": None, "token_at_ns": [], "tokens": []}
CASES: dict[str, tuple[RequestRecord, tuple[float | None, ...], dict[str, Any]]] = {
    "one token has no TPOT": (record(0, 0, [9], done=10), (9, 9, None, 10), {"error": None}),
    "no server figures": (
        record(0, 0, [9, 12]),
        (9, 9, 3, 12),
        {
            "status": None,
            "prompt_tokens": None,
            "output_tokens": None,
            "cached_tokens": None,
            "session": None,
            "turn": None,
            "think_ms": None,
            "scheduled_at": None,
            "connect_ms": None,
            "finish_reason": None,
        },
    ),
    "broken off after two tokens": (
        replace(record(0, 0, [9, 12], 50, Outcome.truncated), error="closed"),
        (inf,) * 4,
        {"outcome": "truncated", "error": "closed", "first_token_at": at(9 * MS)},
    ),
    "refused": (record(0, 0, [], 1, Outcome.status), (inf,) * 4, NO_TOKEN),
    "ended well without a token": (record(0, 0, [], 30), (inf, inf, None, 30), NO_TOKEN),
    "cut off before a token": (
        replace(record(0, 0, [], 400, Outcome.cancelled), error="stopped"),
        (None, None, None, 400),
        OPEN | NO_TOKEN,
    ),
    "cut off after one": (
        record(0, 0, [9], 400, Outcome.cancelled),
        (9, 9, None, 400),
        OPEN | {"last_token_at": at(9 * MS)},
    ),
    "cut off while it reasoned": (
        replace(record(0, 0, [9, 19], 400, Outcome.cancelled), answer_index=-1),
        (9, None, None, 400),
        OPEN,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_stands_for_none(case: str, tmp_path: Path) -> None:
    """Failed: infinite. Undefined or missing: null. Cut off by ourselves: `open`, with its age."""
    request, latencies, more = CASES[case]
    got = row(request, tmp_path)
    assert tuple(got[name] for name in COLUMNS) == latencies
    for name, want in more.items():
        assert got[name] == want, name


@pytest.mark.parametrize(
    ("sent", "status", "want"),
    [
        (999, "found", (None, None, None)),
        (1_000, "found", (0, 4, "warm-up")),
        (1_999, "found", (0, 4, "warm-up")),
        (2_000, "found", (0, 4, "measured")),  # as the result counts: both ends belong to it
        (3_000, "found", (0, 4, "measured")),
        (3_001, "found", (0, 4, "drain")),
        (3_500, "found", (1, 8, "warm-up")),
        (5_000, "found", (1, 8, "measured")),
        (9_000, "found", (1, 8, "drain")),
        (5_500, "", (1, 8, "drain")),
        (5_501, "", (None, None, None)),  # stopped amid a level that has no window
    ],
)  # fmt: skip
def test_levels_and_phases(sent: int, status: str, want: tuple[Any, ...], tmp_path: Path) -> None:
    """By when the request was sent."""
    write(tmp_path, [record(0, sent, [sent + 5])], status=status)
    (got,) = pq.read_table(tmp_path / names.PARQUET).to_pylist()
    level, users, phase = want
    assert got["level"] == level
    assert got["users"] == users
    assert got["phase"] == phase


def test_levels_that_follow_at_once(tmp_path: Path) -> None:
    """Where one level ends in the instant at which the next begins, that instant is measured."""
    records = [record(n, 2_999 + n, [3_100]) for n in range(4)]
    windows = {4: (1_000, 2_000, 3_000, 3_000), 8: (3_000, 4_000, 5_000, 5_000)}
    write(tmp_path, records, windows)
    frame = read(tmp_path)
    assert frame.users.tolist() == [4, 4, 8, 8]
    assert frame.phase.tolist() == ["measured", "measured", "warm-up", "warm-up"]


def ended_records(seed: int, n: int) -> list[RequestRecord]:
    """Of one worker; those that are open were cancelled at the end."""
    records = []
    for drawn in random_records(seed, n):
        outcome = Outcome.cancelled if drawn.outcome == "open" else drawn.outcome
        records.append(replace(drawn, worker=0, outcome=outcome))
    return records


def latency_column(key: str, requests: RecordTable) -> np.ndarray[Any, Any]:
    """A latency of each request in ms; NaN where it has none, and where only its age is known.

    An end-to-end latency of a request that was cut off is its age.
    """
    column = np.full(60, nan)
    seen = LATENCIES[key].observe(requests)
    is_unknown = seen.only_age & (key != "e2e")
    column[seen.row] = np.where(is_unknown, nan, seen.ns.round() / MS)
    return column


@pytest.mark.parametrize("group", [1, 100, 1 << 17])
def test_the_same_in_however_many_groups(
    group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latencies of whole row groups are those of each request; without records it has no rows."""
    monkeypatch.setattr(run_frames, "ROW_GROUP_EVENTS", group)
    monkeypatch.setattr("harness.records.record_tables.MAX_TABLE_EVENTS", 50)
    records = ended_records(7, 60)
    write(tmp_path / "some", records)
    write(tmp_path / "none", [])
    some = tmp_path / "some" / names.PARQUET
    none = tmp_path / "none" / names.PARQUET
    got = read(tmp_path / "some")
    whole = RecordTable.from_records(records)
    groups = pq.ParquetFile(some).num_row_groups
    assert (groups > 1) == (group < 1 << 17)
    for key in LATENCY_KEYS:
        want = latency_column(key, whole)
        assert np.array_equal(got[f"{key}_ms"].to_numpy(), want, equal_nan=True), key
    assert got.tokens.map(len).tolist() == whole.counts.tolist()
    assert pq.read_schema(none).equals(pq.read_schema(some))
    assert read(tmp_path / "none").empty


def hundred(failures: int) -> list[RequestRecord]:
    """Request i takes i + 1 ms to its first token, 10 more to its second; the quickest ones fail.

    Before and after them, in warm-up and drain, come hundreds that took a second.
    """
    around = [*range(1_000, 1_200), *range(3_100, 3_300)]
    requests = [record(n, sent, [sent + 1_000, sent + 2_000]) for n, sent in enumerate(around)]
    for i in range(100):
        sent = 2_000 + 10 * i
        first = sent + i + 1
        if i >= failures:
            requests.append(record(400 + i, sent, [first, first + 10]))
        else:  # half of them before any token
            tokens = [first] if i % 2 else []
            requests.append(record(400 + i, sent, tokens, sent + 12, Outcome.truncated, 2))
    return requests


def upper_quantile(values: pd.Series[float], q: float) -> float:
    """As one asks pandas for it."""
    return float(values.quantile(q, interpolation="higher"))


def check_quantiles(measured: pd.DataFrame, requests: RecordTable) -> None:
    """Each latency's quantiles are those of the result."""
    for key in LATENCY_KEYS:
        spans = blocked_windows(requests, [(2_000 * MS, 3_000 * MS)])
        values = sample_figures(requests, key, spans).seen.ns.round() / MS
        for q in (0.5, 0.9, 0.95, 0.99):
            want = np.quantile(values, q, method="higher")
            assert upper_quantile(measured[f"{key}_ms"], q) == want, (key, q)


def check_levels_and_times(frame: pd.DataFrame) -> None:
    """Section 7: levels without a join, warm-up flagged, times that are times."""
    phases = frame.groupby("phase").size().to_dict()
    assert phases == {"drain": 200, "measured": 100, "warm-up": 200}
    assert set(frame.users) == {4}
    measured = frame.query('phase == "measured"')
    ttft = (measured.first_token_at - measured.sent_at).dt.total_seconds() * 1e3
    well = measured.outcome == "ok"
    assert np.allclose(ttft[well], measured.ttft_ms[well])
    numbers = frame.select_dtypes("number")
    assert numbers.min().min() >= 0


@pytest.mark.parametrize(
    ("failures", "p95", "over_99_5", "failed"),
    [
        # rank ceil(0.95 x 99) = 95 of 0 to 99
        (0, 96, 0.01, 0),
        (4, 100, 0.05, 4),  # 4 infinite ones behind 96: the last finite one
        (5, inf, 0.06, 5),  # exactly the allowed share failed, and the p95 is infinite
        (6, inf, 0.07, 6),
        (50, inf, 0.51, 50),
    ],
)
def test_the_obvious_lines_are_right(
    failures: int, p95: float, over_99_5: float, failed: int, tmp_path: Path
) -> None:
    """What one types first in pandas is what the result says, however many fail (F6)."""
    write(tmp_path, hundred(failures), {4: WINDOWS[4]})
    table = RecordTable.from_records(hundred(failures))
    for frame in (read(tmp_path), open_run(tmp_path).requests):
        measured = frame.query('phase == "measured"')
        check_quantiles(measured, table)
        check_levels_and_times(frame)
        assert upper_quantile(measured.ttft_ms, 0.95) == p95
        assert (measured.ttft_ms > 99.5).mean() == pytest.approx(over_99_5)
        assert measured.ttft_ms.max() == (inf if failures else 100)
        assert np.isinf(measured.ttft_ms).sum() == failed
        assert (measured.outcome != "ok").sum() == failed
        by_level = measured.groupby("level").ttft_ms
        assert by_level.quantile(0.95, interpolation="higher")[0] == p95
        assert measured.error.isna().all()


def test_a_cut_off_request_is_no_observation_of_the_result(tmp_path: Path) -> None:
    """Null in the file, left out of the result's TTFT, its age in both ones' e2e."""
    cut_off = [record(n, 2_500, [], 2_900, Outcome.cancelled) for n in (500, 501)]
    records = hundred(4) + cut_off
    write(tmp_path, records, {4: WINDOWS[4]})
    measured = read(tmp_path).query('phase == "measured"')
    table = RecordTable.from_records(records)
    spans = blocked_windows(table, [(2_000 * MS, 3_000 * MS)])
    for key, n in (("ttft", 100), ("e2e", 102)):
        sample = sample_figures(table, key, spans)
        ordered = np.sort(measured[f"{key}_ms"].dropna())
        assert sample.n == n
        assert sample.n_failed == 4
        assert np.array_equal(ordered, np.sort(sample.seen.ns) / MS)


def test_run_info_names_what_matters() -> None:
    """Versions, hardware, seeds and the clock are there."""
    info = run_info({"users": 4}, seeds={"load": 1}, server={"model": "m"}, command=["knee"])
    about = ["format", "command", "config", "seeds", "server"]
    assert list(info) == [*about, "versions", "hardware", "clock"]
    assert {"harness", "python", "locust"} <= info["versions"].keys()
    assert info["clock"]["realtime_ns"] > info["clock"]["monotonic_ns"]
