"""Own data through the whole command: each row once, on its schedule, with the hits expected."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from study_process import harness, load

from harness import open_run
from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.load.own_data import DataSource
from harness.load.workloads import WORKLOADS
from harness.server.access import TargetAccess
from harness.server.address import Address
from harness.server.http_exchange import fetch
from harness.wire.vllm_metrics import server_sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.process
SAMPLES = Path(__file__).parents[1] / "docs/examples/data"
TRACE = DataSource(str(SAMPLES / "trace.jsonl"), WORKLOADS["chat"])
ROWS = [TRACE.planned(index) for index in range(len(TRACE))]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """An engine with room for all blocks of the samples."""
    with start_engine(EngineConfig(max_num_seqs=8)) as engine:
        yield engine.url


def hits(url: str) -> float:
    """Prompt tokens that the server found in its prefix cache, since it started."""
    sample = server_sample(fetch(TargetAccess(Address.parse(url)), "/metrics").body, 0)
    assert sample is not None
    return sample.prefix_hits_total


def sent(out: Path) -> list[tuple[int, int]]:
    """(prompt, output) tokens of each request of a run, as the server counted them."""
    table = open_run(out).requests
    assert set(table.outcome) == {"ok"}
    return list(zip(table.prompt_tokens, table.output_tokens, strict=True))


def run(url: str, out: Path, name: str, *more: str) -> list[str]:
    """Lines that the command prints; 5: the data was too short, or a busy machine."""
    data = ("--data", str(SAMPLES / f"{name}.jsonl"), "--out", str(out), "--quiet")
    done = harness("run", url, *data, *more)
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return done.stdout.splitlines()


def check_trace(url: str, out: Path) -> None:
    """One user sends the trace: exact lengths in order, exact hits; again, and all is known."""
    before = hits(url)
    said = run(url, out, "trace", "--users", "1", "--data-end", "stop")
    first = hits(url)
    assert sent(out) == ROWS
    assert first - before == sum(TRACE.shared_tokens()) == 8 * 512
    assert [line for line in said if "9 rows, 0 clipped" in line and "without --salt" in line]
    assert "prefix cache" not in load(out / "result.json")["invalid_reason"]
    # With a salt nothing of it is known but what its own rows share.
    run(url, out / "salted", "trace", "--users", "1", "--data-end", "stop", "--salt", "auto")
    assert hits(url) - first == 8 * 512


def test_a_trace_hits_what_is_expected(url: str, tmp_path: Path) -> None:
    """On the embedded engine."""
    check_trace(url, tmp_path / "run")


@pytest.mark.vllm
def test_a_trace_hits_what_is_expected_in_vllm(vllm: Callable[[str], str], tmp_path: Path) -> None:
    """On the real one, whose blocks have 128 tokens on the CPU: 512 is a multiple."""
    check_trace(vllm("speculating"), tmp_path / "run")


def test_rows_are_striped_over_processes(url: str, tmp_path: Path) -> None:
    """Two processes send each row once, whoever is faster. They are too few for nine users."""
    out, more = tmp_path / "run", ("--users", "9", "--processes", "2", "--data-end", "stop")
    said = run(url, out, "trace", *more)
    assert [line for line in said if "data ended before the load had settled" in line]
    assert Counter(sent(out)) == Counter(ROWS)
    by_worker = open_run(out).requests.groupby("worker").size().to_dict()
    assert by_worker == {0: 5, 1: 4}


def test_timestamps_say_when(url: str, tmp_path: Path) -> None:
    """Without --users and --rate each row is due at its time, over two processes, scaled."""
    out = tmp_path / "run"
    run(url, out, "trace", "--processes", "2", "--speed", "2", "--requests", "12")
    table = open_run(out).requests.sort_values("scheduled_at")
    due_ns = table.scheduled_at.astype("int64")
    fast = DataSource(str(SAMPLES / "trace.jsonl"), WORKLOADS["chat"], speed=2.0)
    offsets_ns = (due_ns - due_ns.iloc[0]).tolist()
    assert offsets_ns == [fast.offset_ns(number) for number in range(len(table))]
    lengths = list(zip(table.prompt_tokens, table.output_tokens, strict=True))
    assert lengths == (ROWS * 9)[: len(table)]
    assert len(table) >= 12


def test_conversations_go_out_as_messages(url: str, tmp_path: Path) -> None:
    """Again from the first row on at the end of the data, and the report says so."""
    out = tmp_path / "run"
    said = run(url, out, "chats", "--users", "2", "--requests", "20")
    assert [line for line in said if "15 rows, 0 clipped" in line and "begin again" in line]
    rows = DataSource(str(SAMPLES / "chats.jsonl"), WORKLOADS["chat"])
    outputs = [rows.planned(index)[1] for index in range(15)]
    table = open_run(out).requests.sort_values("number")
    assert table.output_tokens.tolist() == (outputs * 99)[: len(table)]
    sent_times = f"chats.jsonl: 15 rows, sent {len(table) / 15:.1f} times; 0 clipped"
    assert sent_times in (out / "report.html").read_text()
