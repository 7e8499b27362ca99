"""Whole commands against the embedded engine in real time: sanity here, figures in the summary."""

from __future__ import annotations

import html
import json
import shlex
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from study_process import check_code, harness, load

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.engine.server import ServingOptions
from harness.load.plan import plan_lengths
from harness.load.workloads import workload
from harness.metrics.metrics import LATENCIES
from harness.metrics.slo import Slo
from harness.records.folder_reader import read_run
from lab.closed_loop import Traffic
from lab.reference_knee import true_knee

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from study_process import Command

pytestmark = pytest.mark.process
LENGTHS = ("--prompt-tokens", "64", "--output-tokens", "32", "--quiet")
ENGINE = ("--embedded", "--max-num-seqs", "8", *LENGTHS)
SLO = "ttft_p95=200ms"
BLOCK = {
    "n",
    "n_failed",
    "effective_n",
    "mean",
    "p50",
    "p90",
    "p95",
    "p99",
    "p999",
    "max",
}
BLOCKS = {row.field for row in LATENCIES.values()}
RATES = {"output_tokens_per_s", "requests_per_s", "goodput_per_s", "outcomes"}
KNEE = {"holds", "estimate", "fails_by", "ci95", "criterion", "output_tokens_per_s"} | {
    f"{key}_p95_ms{part}" for key in ("ttft", "itl") for part in ("", "_ci95")
}


@pytest.mark.realtime
@pytest.mark.parametrize("seats", [16])
def test_knee_of_the_embedded_engine(
    seats: int, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """`knee` finds about the true knee, explains it, and its folder replays to the same answer."""
    out = tmp_path / "run"
    done = harness(
        "knee",
        "--embedded",
        "--max-num-seqs",
        str(seats),
        *LENGTHS,
        "--slo",
        SLO,
        "--budget",
        "20s",
        "--max-users",
        str(4 * seats),
        "--out",
        str(out),
        "--json",
        "-",
    )
    assert done.returncode in (0, 6), done.stderr
    result = json.loads(done.stdout)
    truth = true_knee(
        EngineConfig(max_num_seqs=seats),
        Traffic(64, 32, 0.4),
        (Slo.parse(SLO),),
        longest_ns=300_000_000_000,
    ).users
    knee = result["knee"]
    figure(
        f"embedded engine in real time, {seats} slots: {result['status']}, holds {knee['holds']}, "
        f"estimate {knee['estimate']} ({knee['ci95'][0]} to {knee['ci95'][1]}), true knee in "
        f"simulated time {truth}; stopped by {result['bottleneck']['bound_by']} "
        f"({result['bottleneck']['confidence']})"
    )
    bound_by = result["bottleneck"]["bound_by"]
    assert bound_by in {"batch slots", "undecided"}  # a slow machine may not let it be told
    assert knee["ci95"][0] <= 2 * truth
    assert knee["ci95"][1] >= truth // 2
    assert knee.keys() >= KNEE
    assert result.keys() >= {"status", "plateau", "power", "levels", "bottleneck", "client"}
    for level in result["levels"]:
        assert level.keys() >= BLOCKS | RATES
        assert [name for name in BLOCKS if not level[name].keys() >= BLOCK] == []
    assert load(out / "result.json") == result
    again = harness("report", str(out))
    assert again.returncode == done.returncode
    assert load(out / "result.json") == result
    assert (result["replay_differences"], result["damage"]) == ([], [])
    first = (out / "levels.csv").read_text().splitlines()[0]
    assert first.startswith("concurrency,mean_e2e_s,p95_e2e_s,qps,tok_s,gpu_util_pct,notes,")


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "want_code", "want_steps"),
    [
        (("run", "--users", "4", "--duration", "4s"), 0, [4]),
        (("sweep", "--users", "1,2,4", "--duration", "3s"), 0, [1, 2, 4]),
        (("run", "--users", "4", "--duration", "4s", "--slo", "ttft_p95=1ms"), 99, [4]),
    ],
)
def test_held_levels(
    command: tuple[str, ...],
    want_code: int,
    want_steps: list[int],
    tmp_path: Path,
    command_here: Command,
) -> None:
    """`run` and `sweep` hold what they are told, once; a missed SLO is exit 99.

    On a machine too busy to keep four users going the step is invalid and says so: exit 5.
    """
    done = harness(*command, *ENGINE, "--out", str(tmp_path / "run"))
    check_code(done.returncode, done.stdout + done.stderr, want_code)
    result = load(tmp_path / "run" / "result.json")
    assert [level["users"] for level in result["levels"]] == want_steps
    assert [level["outcomes"].keys() for level in result["levels"]] == [{"ok"}] * len(want_steps)
    again = command_here("report", str(tmp_path / "run"))
    assert again.returncode == done.returncode
    assert load(tmp_path / "run" / "result.json") == result
    assert result["replay_differences"] == []


@pytest.mark.parametrize("requests", [6, 60])
def test_a_number_of_requests(requests: int, tmp_path: Path) -> None:
    """Exactly so many are measured, and stdout is one JSON document."""
    out = tmp_path / "a run"
    done = harness(
        "run",
        "--users",
        "4",
        "--requests",
        str(requests),
        *ENGINE,
        "--max-model-len",
        "128",
        "--out",
        out.name,
        "--json",
        "-",
        cwd=tmp_path,
    )
    check_code(done.returncode, done.stdout + done.stderr, 0)
    (level,) = json.loads(done.stdout)["levels"]
    assert (level["users"], level["outcomes"], level["ttft_ms"]["n"]) == (
        4,
        {"ok": requests},
        requests,
    )
    if done.returncode == 0:
        assert "4 concurrent requests" in done.stderr
    run = read_run(out)
    # the context clips the longest: planned so, sent so, and said so
    clips = "137 of 1,000 planned requests are clipped to the model's context of 128 tokens\n"
    assert clips in done.stderr
    assert run.info["config"]["clipped_of_1000"] == 137
    work = replace(workload("chat").sized(64, 32), max_model_len=128)
    begun, sent = Counter[int](), []
    for user in run.table.user[run.table.number.argsort()].tolist():
        sent.append(plan_lengths(work, 1, user, begun[user])[1])  # its next request
        begun[user] += 1
    assert sorted(sent) == sorted(run.table.planned_tokens.tolist())
    assert (run.table.prompt_tokens + run.table.planned_tokens).max() <= 128
    # the last command in the report works where the run was made
    *_, again = (out / "report.html").read_text().partition("</pre>")[0].splitlines()
    again = harness(*shlex.split(html.unescape(again))[1:], cwd=tmp_path)
    assert (again.returncode, again.stderr) == (done.returncode, "")


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        ("knee", "--slo", SLO, "--budget", "60s"),
        ("run", "--users", "4", "--duration", "60s"),
    ],
)
def test_a_server_that_fails_hard(command: tuple[str, ...], tmp_path: Path) -> None:
    """From its 60th request on every one is a 500: that is the finding, and it is said."""
    out = tmp_path / "run"
    serving = ServingOptions(fail_after=60)
    with start_engine(EngineConfig(max_num_seqs=8), serving=serving) as engine:
        done = harness(command[0], engine.url, *command[1:], *LENGTHS, "--out", str(out))
    result = load(out / "result.json")
    assert (done.returncode, result["status"]) == (99, "target_failed")
    assert "HTTP 500" in result["invalid_reason"]
    assert "The server failed under load" in done.stdout
    assert result["levels"][-1]["decision"] == "fail"
    users = [level["users"] for level in result["levels"]]
    assert users[-1] == min(users)  # after the failure it went down
