"""How a run ends when somebody ends it: Ctrl-C, a kill, a server that dies."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from study_process import alive, descendants, harness, lines, load, started, wait_for

from harness import open_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process
KNEE = (
    "knee",
    "--embedded",
    "--max-num-seqs",
    "8",
    "--prompt-tokens",
    "64",
    "--output-tokens",
    "32",
    "--quiet",
    "--slo",
    "ttft_p95=200ms",
)

MOMENTS: dict[str, Callable[[int, Path], bool]] = {
    "the engine starts": lambda pid, _: "engine.process" in " ".join(descendants(pid).values()),
    "a load process starts": lambda pid, _: "senders.worker" in " ".join(descendants(pid).values()),
    "the folder is there": lambda _, out: (out / "run.json").exists(),
    "the load starts": lambda _, out: lines(out / "server.jsonl") > 0,
    "the second step": lambda _, out: lines(out / "levels.jsonl") > 0,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c(moment: str, tmp_path: Path) -> None:
    """Exit 130, nothing left running, and a report of what was measured, if there was any.

    A terminal sends the signal to the whole group, so to children that begin to import, too.
    """
    out = tmp_path / "run"
    command = [sys.executable, "-m", "harness", *KNEE, "--out", str(out)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        wait_for(lambda: MOMENTS[moment](process.pid, out))
        family = descendants(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        said, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert alive(family) == []
    if (out / "run.json").exists() and "vllm-harness: interrupted" in err:
        assert lines(out / "levels.jsonl") == 0  # before the load: nothing was measured
    elif (out / "run.json").exists():
        assert "Interrupted" in said
        assert (out / "report.md").exists()
        assert load(out / "result.json")["interrupted"] is True


@pytest.mark.long
def test_kill(tmp_path: Path) -> None:
    """`kill -9` takes its load process, decoder and engine along; the folder is readable."""
    out = tmp_path / "run"
    with started(*KNEE, "--out", str(out)) as process:
        wait_for(lambda: lines(out / "levels.jsonl") > 0)
        family = descendants(process.pid)
        process.kill()
    assert sorted(w.rpartition("harness.")[2].split()[0] for w in family.values()) == [
        "engine.process",
        "reader.decoder_process",
        "senders.worker",
    ]
    wait_for(lambda: alive(family) == [])
    done = harness("report", str(out))
    assert done.returncode == 130
    assert "Interrupted" in done.stdout
    assert load(out / "result.json")["levels"][0]["outcomes"]["ok"] > 0


def test_a_dead_decoder_ends_the_run(tmp_path: Path) -> None:
    """Exit 5 with a sentence, nothing left running, and all that it had written is there."""
    out = tmp_path / "run"
    run = ("run", "--embedded", "--users", "4", "--duration", "60s", "--output-tokens", "32")
    with started(*run, "--quiet", "--out", str(out)) as process:
        records = out / "records.0.msgpack"
        wait_for(lambda: records.exists() and records.stat().st_size > 0)
        family = descendants(process.pid)
        decoder = next(pid for pid, what in family.items() if "reader.decoder_process" in what)
        os.kill(decoder, signal.SIGKILL)
        said, err = process.communicate(timeout=60)
    assert process.returncode == 5, err
    assert f"(pid {decoder}) ended in the middle of the run by signal 9" in " ".join(said.split())
    assert alive(family) == []
    frames = open_run(out).requests
    assert "ok" in set(frames["outcome"])
    assert load(out / "result.json")["status"] == "invalid"


@pytest.mark.long
def test_the_server_dies(tmp_path: Path) -> None:
    """That is the finding: exit code 99, with what it saw; what was measured before is kept."""
    out = tmp_path / "run"
    with started(*KNEE, "--out", str(out)) as process:
        wait_for(lambda: lines(out / "levels.jsonl") > 1)  # the first one's requests have ended
        family = descendants(process.pid)
        os.kill(next(p for p, what in family.items() if "engine.process" in what), signal.SIGKILL)
        said, err = process.communicate(timeout=120)
    assert process.returncode == 99, err
    assert "The server failed under load" in said
    assert "refused" in said
    result = load(out / "result.json")
    ended = result["status"], result["levels"][0]["outcomes"].keys()
    assert ended == ("target_failed", {"ok"})
    assert alive(family) == []


@pytest.mark.realtime
def test_a_client_that_cannot_tell_says_so(tmp_path: Path) -> None:
    """The load process is stopped for 150 of every 200 ms: its own intervals show it. Exit 5."""
    out = tmp_path / "run"
    run = (
        "run",
        "--embedded",
        "--users",
        "8",
        "--duration",
        "6s",
        "--output-tokens",
        "64",
        "--quiet",
    )
    with started(*run, "--slo", "itl_p95=50ms", "--out", str(out)) as process:
        wait_for(lambda: lines(out / "client.jsonl") > 3)
        worker = next(p for p, w in descendants(process.pid).items() if "senders.worker" in w)
        until = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGSTOP)
                time.sleep(0.15)
                os.kill(worker, signal.SIGCONT)
                time.sleep(0.05)
        said, err = process.communicate(timeout=60)
    assert process.returncode == 5, err
    assert "This client can only place p95 ITL between" in said
    remedies = ("try --processes 4", "busy with other programs", "no core was idle")
    assert any(remedy in said for remedy in remedies), said
    step = load(out / "result.json")["levels"][0]
    assert step["client"]["instrument_share"]["itl_p95"] > 0.05
    assert step["client"]["loop_lag_max_ms"] > 50
