"""The run folder: written whole or counted as lost, read whatever happened, and without secrets."""

import json
import resource
import signal
import subprocess
import sys
import time
from array import array
from pathlib import Path

import numpy as np
import pytest

from harness.errors import RunFolderError
from harness.records import names
from harness.records.codec import decode, encode
from harness.records.folder_reader import read_run, read_sends
from harness.records.folder_writer import (
    CUT_SHORT,
    AppendFile,
    RecordWriter,
    RunFolder,
    SendJournal,
    merge_kept,
)
from harness.records.record_table import OUTCOMES
from harness.records.request_record import Outcome, RequestRecord
from harness.records.samples import ServerSample


def record(
    number: int, at: list[int], outcome: Outcome = Outcome.ok, done: int = 0
) -> RequestRecord:
    """A request of worker 1 with events at these instants."""
    return RequestRecord(
        worker=1,
        number=number,
        user=0,
        sent_ns=0,
        done_ns=done or at[-1],
        outcome=outcome,
        at_ns=array("q", at),
        not_before_ns=array("q", at),
        tokens=array("q", [1] * len(at)),
    )


def read(path: Path) -> list[RequestRecord]:
    """The folder's records, by number."""
    records: list[RequestRecord] = []
    for file in names.record_files(path):
        records += decode(file.read_bytes()).records
    return sorted(records, key=lambda record: record.number)


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    """An empty directory will do; one that holds anything is left alone."""
    RunFolder.create(tmp_path / "new" / "deep")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "report.html").write_text("mine")
    with pytest.raises(RunFolderError, match=r"exists and is not an empty folder.*--out"):
        RunFolder.create(tmp_path / "old")


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    """A file where the folder should be is said in a sentence."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="is not an empty folder"):
        RunFolder.create(tmp_path / "file")


def test_what_is_open_at_the_end_is_written_as_cancelled(tmp_path: Path) -> None:
    """Parts in any order, one of them twice, become one record; those of ended ones go."""
    writer = RecordWriter(RunFolder.create(tmp_path), 1)
    late = record(0, [30, 31], Outcome.open, 35)
    early = record(0, [10, 11], Outcome.open, 15)
    ended = record(1, [7])
    writer.put([late, early, late, ended, ended, record(1, [7], Outcome.open, 9)])
    assert [r.number for r in read(tmp_path)] == [1]
    writer.close()
    writer.close()
    cut, other = read(tmp_path)
    assert cut.outcome == Outcome.cancelled
    assert cut.done_ns == 35
    assert cut.error == CUT_SHORT
    assert list(cut.at_ns) == [10, 11, 30, 31]
    assert other == ended


def test_numbers_that_are_missing_are_counted(tmp_path: Path) -> None:
    """Worker 1 wrote 0, 2 and 5: three of six are missing; a duplicate is dropped."""
    folder = RunFolder.create(tmp_path)
    for worker, numbers in ((0, [0, 2]), (3, [5, 2])):
        writer = RecordWriter(folder, worker)  # two files with the same worker's records
        writer.put([record(n, [n + 1]) for n in numbers])
        writer.close()
    run = read_run(tmp_path)
    damage = run.damage
    assert run.table.number.tolist() == [0, 2, 5]
    assert damage.duplicates == 1
    assert damage.missing == {1: 3}
    assert damage.sentences()[1:] == ["3 requests have no record (by worker: {1: 3})"]


def keep_on_another_host(kept: RunFolder, run_id: str, numbers: list[int]) -> None:
    """Records of worker 1 in a run, and its journal of nine that it began."""
    file = AppendFile(kept.path / names.records(1, run_id))
    file.append(b"".join(encode(record(n, [n + 1])) for n in numbers))
    SendJournal(kept.path / names.sends(1, run_id), 9).close()


def test_a_journal_counts_what_no_record_tells_of(tmp_path: Path) -> None:
    """Worker 1 began 8 and wrote 0, 2, 5; worker 2 began 3 and wrote none: 5 and 3 are missing.

    What workers kept on other hosts is merged, of this run only: worker 1 had 7 as well, began 9,
    and has the end of 2, which the master saw cut short.
    """
    folder = RunFolder.create(tmp_path / "run")
    kept = RunFolder.create(tmp_path / "workers")
    folder.write_json(names.RUN, {"config": {"drive": {"run_id": "a1"}}})
    SendJournal(folder.path / names.sends(1), 8).close()
    SendJournal(folder.path / names.sends(2), 3).close()
    writer = RecordWriter(folder, 1)
    writer.put([record(0, [1]), record(2, [3], Outcome.open), record(5, [6])])
    writer.close()
    assert read_run(folder.path).damage.missing == {1: 5, 2: 3}
    keep_on_another_host(kept, "a1", [2, 7])
    keep_on_another_host(kept, "b2", [1, 3, 4])
    for _ in range(2):  # the second time nothing is new
        merge_kept(folder.path, [kept.path])
        run = read_run(folder.path)
        assert run.table.number.tolist() == [0, 2, 5, 7]
        assert run.damage.missing == {1: 5, 2: 3}
        assert {OUTCOMES[code] for code in run.table.outcome} == {Outcome.ok}
    with pytest.raises(RunFolderError, match="holds nothing of this run"):
        merge_kept(folder.path, [tmp_path])


COUNT_FOR_EVER = """
import sys
from itertools import count
from pathlib import Path
from harness.records.folder_writer import SendJournal
journal = SendJournal(Path(sys.argv[1]))
for n in count(1):
    journal.count(n)
    print(n, flush=True)
"""


def test_a_killed_worker_has_counted_what_it_began(tmp_path: Path) -> None:
    """After kill -9 the journal is at what had left by then, or one further."""
    path = tmp_path / names.sends(0)
    command = [sys.executable, "-c", COUNT_FOR_EVER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        seen = child.stdout.readline()
        time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
        seen = (seen + child.stdout.read()).splitlines()[-1]
    assert read_sends(tmp_path)[0] - int(seen) in {0, 1}


def test_a_full_disk_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Past the limit whole records are refused; when there is room again the file goes on."""
    writer = RecordWriter(RunFolder.create(tmp_path), 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # writes fail as on a full disk
    try:
        for number in range(20):
            events = list(range(1, 100, 2 + number % 3))
            writer.put([record(number, events)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    fitted = len(read(tmp_path))
    assert 0 < fitted < 20
    writer.put([record(20, [1])])
    writer.close()
    assert [r.number for r in read(tmp_path)][-1] == 20
    assert capsys.readouterr().err.count("the run goes on") == 1


def test_lines_keep_infinity_and_lose_only_what_is_torn(tmp_path: Path) -> None:
    """A step with an infinite quantile comes back; a torn last line is counted."""
    folder = RunFolder.create(tmp_path)
    lines = folder.lines(names.LEVELS)
    level = {"users": np.int64(4), "ttft_p95_ms": float("inf"), "itl_p95_ms": float("nan")}
    lines.append(level)
    lines.append({"users": 8})
    lines.close()
    path = tmp_path / names.LEVELS
    path.write_bytes(path.read_bytes()[:-4])
    run = read_run(tmp_path)
    assert run.levels == [{"users": 4, "ttft_p95_ms": "inf", "itl_p95_ms": None}]
    assert run.damage.bad_lines == 1
    assert run.damage.unreadable == [names.RUN]


def test_levels_under_their_old_name_are_read(tmp_path: Path) -> None:
    """Version 0.1 called the file steps.jsonl."""
    folder = RunFolder.create(tmp_path)
    folder.lines(names.LEVELS).append({"users": 8})
    (tmp_path / names.LEVELS).rename(tmp_path / "steps.jsonl")
    assert read_run(tmp_path).levels == [{"users": 8}]


def test_server_samples_come_back(tmp_path: Path) -> None:
    """What the server did not say is NaN again."""
    lines = RunFolder.create(tmp_path).lines(names.SERVER)
    sample = ServerSample(at_ns=5, running=3.0, kv_usage=0.25)
    lines.append(sample)
    lines.close()
    with lines.path.open("ab") as file:
        file.write(b'{"running": 3}\n{"at_ns": "x"}\n[]\n')
    run = read_run(tmp_path)
    assert repr(run.server) == repr([sample])
    assert run.damage.bad_lines == 3


def test_a_final_file_is_replaced_whole(tmp_path: Path) -> None:
    """No temporary file stays, and the last content wins."""
    folder = RunFolder.create(tmp_path)
    folder.write_json(names.RESULT, {"n": 1})
    folder.write_json(names.RESULT, {"n": 2})
    assert [path.name for path in tmp_path.iterdir()] == [names.RESULT]
    assert json.loads((tmp_path / names.RESULT).read_text()) == {"n": 2}


@pytest.mark.parametrize("name", [names.RUN, names.LEVELS, names.SERVER, names.RESULT])
def test_every_truncation_of_every_file_reads(tmp_path: Path, name: str) -> None:
    """Cut any file anywhere: the folder reads without an exception."""
    folder = RunFolder.create(tmp_path)
    folder.write_json(names.RUN, {"config": {"users": 4}})
    levels = folder.lines(names.LEVELS)
    levels.append({"users": 1, "reason": "no requests over"})
    folder.lines(names.SERVER).append(ServerSample(at_ns=7, running=1.0))
    folder.write_json(names.RESULT, {"status": "found"})
    data = (tmp_path / name).read_bytes()
    for cut in range(len(data)):
        (tmp_path / name).write_bytes(data[:cut])
        read_run(tmp_path)


def test_no_run_folder_is_said(tmp_path: Path) -> None:
    """A missing or foreign directory is refused with a sentence."""
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(RunFolderError, match="is not a run folder"):
            read_run(path)


WRITE_FOR_EVER = """
import sys
from pathlib import Path
from array import array
from harness.records.request_record import Outcome, RequestRecord
from harness.records.folder_writer import RecordWriter
from harness.records.folder_writer import RunFolder
folder = RunFolder.create(Path(sys.argv[1]))
folder.write_json("run.json", {"config": {}})
writer, lines = RecordWriter(folder, 0), folder.lines("levels.jsonl")
print("ready", flush=True)
for number in range(10**9):
    at = array("q", range(number, number + 1000, 3))
    writer.put([RequestRecord(0, number, 0, number, number + 1000, Outcome.ok, at_ns=at,
                not_before_ns=at, tokens=array("q", [1] * len(at)))])
    lines.append({"index": number})
"""


@pytest.mark.parametrize("after_ms", [0, 7, 23, 61])
def test_a_kill_leaves_a_readable_folder(tmp_path: Path, after_ms: int) -> None:
    """After kill -9 in the middle of writing every record is whole and none is missing between."""
    path = tmp_path / "run"
    command = [sys.executable, "-c", WRITE_FOR_EVER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(after_ms / 1000)
        child.send_signal(signal.SIGKILL)
    run = read_run(path)
    assert list(run.table.number) == list(range(len(run.table)))
    assert [OUTCOMES[code].value for code in set(run.table.outcome)] in ([], ["ok"])
    assert run.damage.missing == {}
    assert run.damage.damaged_bytes == 0
