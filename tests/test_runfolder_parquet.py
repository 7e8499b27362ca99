"""requests.parquet holds what the records held, and run.json what a stranger asks."""

from array import array
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from harness.measure.records import Outcome, RequestRecord
from harness.measure.table import RecordTable
from harness.runfolder import names
from harness.runfolder.parquet import read_parquet, write_parquet
from harness.runfolder.runinfo import run_info
from harness.runfolder.writer import RunFolder

RECORDS = [
    RequestRecord(0, n, n, 100 * n, 100 * n + 50, outcome, error="x" * n,
                  at_ns=array("q", range(n)), not_before_ns=array("q", range(n)),
                  tokens=array("q", [2] * n))
    for n, outcome in enumerate((Outcome.ok, Outcome.status, Outcome.cancelled, Outcome.ok))
]  # fmt: skip


@pytest.mark.parametrize("count", [0, 1, 4])
def test_parquet_round_trip(tmp_path: Path, count: int) -> None:
    """Every column of every request comes back, of none too."""
    table = RecordTable.from_records(RECORDS[:count])
    folder = RunFolder.create(tmp_path)
    each = [(RecordTable.from_records([r]), [r.error]) for r in RECORDS[:count]]
    write_parquet(folder, names.PARQUET, each)
    got = read_parquet(tmp_path / names.PARQUET)
    for f in fields(RecordTable):
        assert np.array_equal(getattr(got, f.name), getattr(table, f.name)), f.name


def test_parquet_of_an_older_version(tmp_path: Path) -> None:
    """A number that the file lacks is -1: not said."""
    folder = RunFolder.create(tmp_path)
    whole = RecordTable.from_records(RECORDS)
    write_parquet(folder, names.PARQUET, [(whole, [""] * len(whole))])
    columns = pq.read_table(tmp_path / names.PARQUET).drop_columns(["silent_events"])
    pq.write_table(columns, tmp_path / "old.parquet")
    assert read_parquet(tmp_path / "old.parquet").silent_events.tolist() == [-1] * 4


def test_run_info_names_what_matters() -> None:
    """Versions, hardware, seeds and the clock are there."""
    info = run_info({"users": 4}, seeds={"load": 1}, server={"model": "m"}, command=["knee"])
    assert list(info) == ["format", "command", "config", "seeds", "server", "versions",
                          "hardware", "clock"]  # fmt: skip
    assert {"harness", "python", "locust"} <= info["versions"].keys()
    assert info["clock"]["realtime_ns"] > info["clock"]["monotonic_ns"]
