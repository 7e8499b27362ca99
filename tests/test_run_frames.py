"""A run folder as frames: they hold what the result says, and the page describes each column."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from report_folder import LEVELS, begin, make

import harness
from harness.errors import RunFolderError
from harness.metrics.result import read_result
from harness.metrics.statistics import QUANTILES as Q
from harness.records import names
from harness.records.folder_writer import RunFolder
from harness.records.json_files import flat
from harness.records.samples import GpuSample
from harness.report.write import CSV_COLUMNS, level_row, levels_csv
from harness.run.run_frames import LEVELS as LEVEL_COLUMNS
from harness.run.run_frames import write_levels

if TYPE_CHECKING:
    from harness.metrics.result import Level
    from harness.run.run_frames import RunFrames

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/run-folder.md").read_text()
FAIL_ABOVE = 50  # in the levels above it some requests fail: 64, 56, 52, 51


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search as the product's own writers write it, with failures and a GPU."""
    path = tmp_path_factory.mktemp("frames") / "run"
    make(path, seconds=1, fail_above=FAIL_ABOVE)
    lines = RunFolder(path).lines(names.GPU)
    for n in range(3):
        lines.append(GpuSample(10**9 * n, 0, util_pct=90.0 + n, throttled=("heat", "power")[:n]))
    lines.close()
    return path


@pytest.fixture(scope="module")
def run(folder: Path) -> RunFrames:
    """The same, opened."""
    return harness.open_run(folder)


def test_each_level_is_what_the_result_says(run: RunFrames) -> None:
    """Requests, failures, gaps and tokens of each level's window, from the frames alone."""
    assert run.result is not None
    any_failed = False
    for level in run.result.levels:
        here = f'phase == "measured" and level == {level.index}'
        requests = run.requests.query(here)
        tokens = run.tokens.query(here)
        assert set(requests.users) | set(tokens.users) == {level.users}
        check_ttft(requests, level)
        check_gaps(tokens, level)
        assert round(tokens.tokens.sum() / level.seconds, 3) == level.output_tokens_per_s
        assert round(float(tokens.exact.mean()), 6) == level.exact_share
        any_failed |= level.ttft_ms.n_failed > 0
    assert any_failed


def check_ttft(requests: pd.DataFrame, level: Level) -> None:
    """A level's TTFT from its requests: how many, how many failed, and its quantiles."""
    ttft = level.ttft_ms
    assert len(requests) == ttft.n
    assert (requests.ttft_ms == inf).sum() == ttft.n_failed
    for name, q in Q.items():
        quantile = requests.ttft_ms.quantile(q, interpolation="higher")
        assert round(quantile, 6) == ttft.at(name)[0]


def check_gaps(tokens: pd.DataFrame, level: Level) -> None:
    """A level's gaps from its tokens: how many, how many failed, and their quantiles."""
    gaps = tokens.gap_ms
    itl = level.itl_ms
    assert gaps.count() == itl.n
    assert (gaps == inf).sum() == itl.n_failed
    quantiles = [gaps.quantile(q, interpolation="higher") for q in Q.values()]
    assert [itl.at(name)[0] for name in Q] == pytest.approx(quantiles, rel=1e-3)


def test_levels(run: RunFrames) -> None:
    """One row per held level, its instants as times, its figures under the result's own names."""
    assert run.result is not None
    held = run.result.levels
    levels = run.levels
    assert list(levels.columns[:6]) == list(LEVEL_COLUMNS)
    assert levels.level.tolist() == list(range(len(LEVELS)))
    assert tuple(levels.users) == LEVELS
    assert [at.value for at in levels.settled_at] == [level.settled_ns for level in held]
    spans = (levels.ended_at - levels.started_at).dt.total_seconds()
    assert spans.between(1.4, 1.8).all()  # half a second of warm-up, a second measured
    assert levels["ttft_ms.n"].tolist() == [level.ttft_ms.n for level in held]
    cells = levels["itl_ms.p50_ci95_lo"].tolist()
    assert cells == [level.itl_ms.p50_ci95[0] for level in held]
    assert inf in levels["itl_ms.p99"].tolist()  # "inf" in JSON


def test_samples(run: RunFrames, folder: Path) -> None:
    """The server's and the GPU's readings, with times."""
    scrapes = (folder / names.SERVER).read_text().count("\n")
    assert len(run.server) == scrapes
    assert str(run.server["at"].dtype) == "datetime64[ns, UTC]"
    assert run.server.waiting.max() > 0
    empty = run.gpu.columns[run.gpu.isna().all()]
    gpu = run.gpu.drop(columns=empty)
    assert list(gpu) == ["at", "gpu", "util_pct", "throttled"]
    instants = [pd.Timestamp(n, unit="s", tz="UTC") for n in range(3)]
    assert gpu["at"].tolist() == instants
    assert gpu["gpu"].tolist() == [0] * 3
    assert gpu["util_pct"].tolist() == [90, 91, 92]
    assert gpu["throttled"].tolist() == ["", "heat", "heat, power"]


def test_without_parquet_and_result(run: RunFrames, tmp_path: Path) -> None:
    """A run that was killed: the same requests from its records, levels without figures.

    After the last level that has a line another one may have begun: nobody knows.
    """
    make(tmp_path / "run", seconds=1, fail_above=FAIL_ABOVE, status="")
    killed = harness.open_run(str(tmp_path / "run"))
    assert killed.result is None
    assert list(killed.levels.columns) == list(LEVEL_COLUMNS)
    check_cut_off(killed.requests, run.requests, "sent_at", killed.levels.ended_at.max())
    check_cut_off(killed.tokens, run.tokens, "at", killed.levels.ended_at.max())


def check_cut_off(got: pd.DataFrame, want: pd.DataFrame, at: str, end: pd.Timestamp) -> None:
    """The rows of a run that was killed: those after its last level have no place."""
    within = want[at] <= end
    place = ["level", "users", "phase"]
    pd.testing.assert_frame_equal(got[within], want[within])
    without_place = got.drop(columns=place)
    pd.testing.assert_frame_equal(without_place, want.drop(columns=place))
    assert got[~within][place].isna().all(axis=None)


def test_nothing_was_measured(tmp_path: Path) -> None:
    """A folder with run.json alone has empty frames with all their columns."""
    begin(tmp_path / "run")
    run = harness.open_run(tmp_path / "run")
    frames = [run.requests, run.tokens, run.levels, run.server, run.gpu]
    assert all(frame.empty for frame in frames)
    kinds = {str(frame["at"].dtype) for frame in frames if "at" in frame}
    assert kinds == {"datetime64[ns, UTC]"}
    with pytest.raises(RunFolderError, match="is not a run folder"):
        harness.open_run(tmp_path)


def test_the_page_has_every_file_and_column(run: RunFrames) -> None:
    """docs/run-folder.md (that it is what is generated, tests/test_project_docs.py sees)."""
    constants = [name for name in dir(names) if re.fullmatch("[A-Z][A-Z_]+", name)]
    files = {getattr(names, name) for name in constants}
    files -= {names.WORKER_FOLDER}
    described = re.findall(r"^\| `([\w.]+)`", PAGE, re.MULTILINE)
    assert files - set(described) == set()
    for name in ("requests", "tokens", "levels", "server", "gpu"):
        rows = PAGE.partition(f"\n## run.{name}\n")[2].partition("\n## ")[0]
        told = re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]* \| [^|]+ \|$", rows, re.MULTILINE)
        frame = getattr(run, name)
        columns = [c for c in frame.columns if "." not in c]
        assert [column for column, _ in told] == columns[: len(told)], name
        for column, kind in told:
            dtype = str(frame[column].dtype)
            known = frame[column].isna().all() or KINDS_OF[kind].fullmatch(dtype)
            assert known, f"{name}: {column} is {dtype}"


KINDS_OF = {
    "integer": re.compile("[Ii]nt64"),
    "number": re.compile("float64"),
    "text": re.compile("str|object"),
    "time": re.compile(r"datetime64\[ns, UTC\]"),
    "true or false": re.compile("boolean"),
    "list of integers": re.compile("object"),
}


def test_the_pages_lines_run(run: RunFrames) -> None:
    """Every line of code on it, as it stands there; what some of them must give."""
    known: dict[str, Any] = {
        "measured": run.requests.query('phase == "measured"'),
        "tokens": run.tokens.query('phase == "measured"'),
        "run": run,
        "levels": run.levels.set_index("level"),
    }
    lines = re.findall(r"^([A-Z].*):\n\n    (.*)$", PAGE, re.MULTILINE)
    got = {what: eval(code, known) for what, code in lines}  # noqa: S307 - ours
    assert run.result is not None
    levels = run.result.levels
    rates = got["Output tokens per second of each level"].astype(float).round(3)
    assert rates.tolist() == [level.output_tokens_per_s for level in levels]
    counts = got["How the requests of each level ended"].to_dict()
    failed = [level.outcomes.get("status", 0) for level in levels]
    counted = [counts.get((i, "measured", "status"), 0) for i in range(len(levels))]
    assert counted == failed
    assert got["Why requests failed"].sum() == (run.requests.outcome != "ok").sum()


def test_the_example(folder: Path, run: RunFrames) -> None:
    """docs/examples/analyze.py, as somebody types it."""
    command = [sys.executable, "docs/examples/analyze.py", str(folder), "300"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    levels, outcomes, gaps = out.strip("\n").split("\n\n")
    top = run.requests.query('phase == "measured" and level == 6')  # 64 users
    p95 = top.ttft_ms.quantile(0.95, interpolation="higher")
    (row,) = re.findall(r"^6 +64 +(\d+) +(\S+) +(\S+) +\S+$", levels, re.MULTILINE)
    requests, p95_ms, over = row
    assert requests == str(len(top))
    assert p95_ms == f"{p95:.6f}".rstrip("0")
    assert over == f"{(top.ttft_ms > 300).mean():.1%}"
    failed = int((run.requests.outcome == "status").sum())
    assert outcomes.splitlines()[-1].split() == ["status", str(failed)]
    tokens = run.tokens.query('phase == "measured"')
    found = re.findall(r"(?:\)|nan) +([\d,]+)", gaps)
    counted = [int(number.replace(",", "")) for number in found]
    assert sum(counted) == tokens.gap_ms.count()


def test_importing_the_package_costs_nothing() -> None:
    """pandas, pyarrow and numpy come with the first frame, not with `import harness`."""
    code = "import sys, harness; print({'numpy', 'pandas', 'pyarrow'} & set(sys.modules))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ({"n": 3, "ttft_ms": {"p95": "inf"}}, {"n": 3, "ttft_ms.p95": "inf"}),
        ({"p95_ci95": [1, "inf"]}, {"p95_ci95_lo": 1, "p95_ci95_hi": "inf"}),
        ({"a": {"ms_bound": None}}, {"a.ms_bound_lo": None, "a.ms_bound_hi": None}),
        ({"cpu": {"worker 0": {"mean": 1}}, "none": {}}, {"cpu.worker 0.mean": 1}),
        ({"throttled": ["heat", "power"]}, {"throttled": "heat, power"}),
    ],
)
def test_flat(value: dict[str, Any], want: dict[str, Any]) -> None:
    """Cells of a table: scalars under dotted names, intervals as two."""
    assert flat(value) == want


def test_a_failure_is_infinite_in_the_table_too(tmp_path: Path) -> None:
    """JSON's word for it becomes a number; what no level has is null; no level, no row."""
    first = {"a": "inf", "b": 10**18 + 1, "d": "x"}
    second = {"a": 2.5, "b": 2, "c": True, "d": None}
    write_levels(RunFolder(tmp_path), [first, second])
    table = pd.read_parquet(tmp_path / names.LEVELS_PARQUET)
    assert table["a"].tolist() == [inf, 2.5]
    assert table["b"].tolist() == [10**18 + 1, 2]  # instants in ns are exact
    assert table["c"].tolist() == [None, True]
    assert table["d"][0] == "x"
    assert table["d"].isna().tolist() == [False, True]
    write_levels(RunFolder(tmp_path), [])
    assert pd.read_parquet(tmp_path / names.LEVELS_PARQUET).shape == (0, 0)


def test_steps_csv_has_flat_cells(folder: Path, tmp_path: Path) -> None:
    """No Python in a cell, no interval in words, and nothing twice that FIRST has."""
    result = read_result(folder)
    assert result is not None
    rows = [level_row(level) for level in result.levels]
    short = pd.read_csv(io.StringIO(levels_csv(rows)))
    assert tuple(short.columns) == CSV_COLUMNS
    assert len(CSV_COLUMNS) <= 40
    write_levels(RunFolder(tmp_path), rows)
    table = pd.read_parquet(tmp_path / names.LEVELS_PARQUET)
    assert {*CSV_COLUMNS} <= {*table.columns}
    assert table["concurrency"].tolist() == short["concurrency"].tolist()
    cells = table.to_csv(index=False)
    assert re.findall(r"[{\[]|\d\.\.\d", cells) == []
    assert {"users", "ttft_p95_ms", "itl_p95_ms", "reason"} & set(table.columns) == set()
    assert table["client.turnaround_ms.mean"].notna().any()
    low = table["itl_ms.p50_ci95_lo"]
    p50 = table["itl_ms.p50"]
    high = table["itl_ms.p50_ci95_hi"]
    assert (low <= p50).sum() > 0
    assert (low <= p50).sum() == (p50 <= high).sum()
