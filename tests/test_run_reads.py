"""How often results, reports and requests.parquet together read a run's record files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hostile_frames import hostile
from report_folder import make

from harness.cli.conclude import conclude
from harness.compat import TOOLS
from harness.core.typed_json import to_json
from harness.metrics.result import read_result
from harness.records import names
from harness.run.results import write_results

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLES = Path(__file__).parents[1] / "reports/samples"
# What earlier versions wrote with `--otlp-port`: a line of traces.jsonl, and of each level.
TRACE = {"request_id": "cmpl-r-0-1-0", "ttft_s": 0.5, "queue_s": 0.25, "prefill_s": 0.125}
TRACED = {"n": 1, "sent": 2, "queue_ms": 250.0, "queue_p95_ms": 250.0}
OPENED: Counter[str] = Counter()
WATCHED: list[Path] = []  # folders; an audit hook stays for the life of the process


def watch(event: str, args: tuple[Any, ...]) -> None:
    """Count what is opened to be read, by whatever function."""
    if WATCHED and event == "open" and isinstance(args[0], str | os.PathLike):
        path = Path(args[0])
        flags = args[2]
        if path.parent in WATCHED and not flags & (os.O_WRONLY | os.O_RDWR):
            OPENED[path.name] += 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A search that has ended, and every file in it that is opened."""
    path = tmp_path_factory.mktemp("reads") / "run"
    make(path, seconds=1, levels=(1, 2, 4, 8, 4))
    sys.addaudithook(watch)
    WATCHED.append(path)
    yield path
    WATCHED.clear()


@pytest.mark.parametrize("compat", [(), TOOLS], ids=["alone", "compat"])
def test_the_record_files_are_read_twice(folder: Path, compat: tuple[str, ...]) -> None:
    """Once for the requests, once for the tokens in their windows: whatever is made of them."""
    OPENED.clear()
    for name in (names.RESULT, names.PARQUET, names.REPORT_HTML, names.REPORT_MD):
        (folder / name).unlink(missing_ok=True)
    result = conclude(folder, None, compat=compat)
    assert tuple(result.compat or ()) == compat
    assert (folder / names.PARQUET).stat().st_size > 0
    page = (folder / names.REPORT_HTML).read_text()
    assert "spread-itl" in page  # the curves of all gaps are drawn
    assert OPENED[names.records(0)] == 2
    assert OPENED[names.records(1)] == 2


def test_definitions_are_imported_for_compat_alone() -> None:
    """Neither the command line nor results of a run without it import what tools define."""
    code = (
        "import sys, harness.cli.terminal, harness.run.options_from_args, harness.run.results\n"
        "print([m for m in sys.modules if m.startswith('harness.compat.')])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_hostile_folder_is_damaged(tmp_path: Path) -> None:
    """Whatever its files claim, what is good in them is reported, and the rest is counted."""
    path = tmp_path / "run"
    make(path, seconds=1, levels=(1, 2))
    claims = hostile(10**12)
    lines = b'{"at_ns": "x", "process": 1}\n{"at_ns": 1e400, "process": "p", "cpu_s": "y"}\n'
    for name, junk in (
        (names.records(0), claims),
        (names.CLIENT, lines),
        (names.GPU, lines),
        (names.LEVELS, b'{"users": "x"}\n{"purpose": "none"}\n'),
    ):
        with (path / name).open("ab") as file:
            file.write(junk)
    result = write_results(path).result
    assert len(result.levels) == 2
    assert result.damage == (
        f"{len(claims)} damaged bytes of records were skipped",
        "6 unreadable lines of steps or samples were skipped",
    )


def test_a_folder_with_traces_is_reported(tmp_path: Path) -> None:
    """What earlier versions wrote of traces is no damage, and changes nothing."""
    path = tmp_path / "run"
    make(path, seconds=1, levels=(1, 2))
    written = json.loads((path / names.RESULT).read_text())
    info = json.loads((path / names.RUN).read_text())
    info["config"]["drive"]["request_ids"] = True
    earlier = written | {"levels": [one | {"ttft_traced": TRACED} for one in written["levels"]]}
    (path / names.RUN).write_text(json.dumps(info))
    (path / names.RESULT).write_text(json.dumps(earlier))
    (path / "traces.jsonl").write_text(f"{json.dumps(TRACE)}\nno JSON\n")
    assert to_json(read_result(path)) == written
    assert to_json(write_results(path).result) == written


@pytest.mark.parametrize("path", sorted({file.parent for file in SAMPLES.rglob(names.RESULT)}))
def test_results_of_earlier_versions_are_read(path: Path) -> None:
    """Fields that are gone are ignored: most of reports/samples have `ttft_traced`."""
    levels = json.loads((path / names.RESULT).read_text())["levels"]
    result = read_result(path)
    assert result is not None
    assert [level.users for level in result.levels] == [level["users"] for level in levels]
