"""Whole commands against the embedded engine in real time: sanity here, figures in the summary."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from harness.engine.config import EngineConfig
from harness.engine.traffic import Traffic
from harness.engine.truth import true_knee
from harness.measure.slo import Slo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.realtime
ENGINE = ["--max-num-seqs", "8", "--prompt-tokens", "64", "--output-tokens", "32"]
BLOCK = {
    "n", "n_failed", "effective_n", "mean", "p50", "p90", "p95", "p99", "p999", "max",
}  # fmt: skip


def harness(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def load(path: Path) -> dict[str, Any]:
    """A JSON file."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_knee_of_the_embedded_engine(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """`knee` finds about the true knee, explains it, and its folder replays to the same answer."""
    out = tmp_path / "run"
    done = harness(
        "knee", *ENGINE, "--slo", "ttft_p95=200ms", "--budget", "60s", "--max-users", "64",
        "--out", str(out), "--json", "-",
    )  # fmt: skip
    assert done.returncode in (0, 6), done.stderr
    result = json.loads(done.stdout)
    truth = true_knee(
        EngineConfig(max_num_seqs=8), Traffic(64, 32, 0.4), (Slo.parse("ttft_p95=200ms"),),
        longest_ns=300_000_000_000,
    ).users  # fmt: skip
    knee = result["knee"]
    figure(
        f"embedded engine in real time: {result['status']}, knee {knee['users']} "
        f"({knee['ci95'][0]} to {knee['ci95'][1]}), true knee in simulated time {truth}"
    )
    assert result["verdict"]["bound_by"] == "batch slots"
    assert knee["ci95"][0] <= 2 * truth
    assert knee["ci95"][1] >= truth // 2
    assert load(out / "knee.json") == result
    assert load(out / "summary.json")["ttft_ms"].keys() >= BLOCK
    wanted = {
        "users",
        "ci95",
        "criterion",
        "ttft_p95_ms",
        "ttft_p95_ms_ci95",
        "output_tokens_per_s",
    }
    assert wanted <= knee.keys()
    again = harness("report", str(out))
    assert again.returncode == done.returncode
    after = load(out / "knee.json")
    assert after["replay_differences"] == []
    assert after == result
    first = (out / "steps.csv").read_text().splitlines()[0]
    assert first.startswith("concurrency,mean_e2e_s,p95_e2e_s,qps,tok_s,gpu_util_pct,notes,")


@pytest.mark.parametrize(
    ("command", "want_code", "want_steps"),
    [
        (("run", "--users", "4", "--duration", "4s"), 0, [4]),
        (("run", "--users", "4", "--requests", "30"), 0, [4]),
        (("sweep", "--users", "1,2,4", "--duration", "3s"), 0, [1, 2, 4]),
        (("run", "--users", "4", "--duration", "4s", "--slo", "ttft_p95=1ms"), 99, [4]),
    ],
)
def test_held_levels(
    command: tuple[str, ...], want_code: int, want_steps: list[int], tmp_path: Path
) -> None:
    """`run` and `sweep` hold what they are told; a missed SLO is exit 99."""
    done = harness(*command, *ENGINE, "--out", str(tmp_path / "run"))
    assert done.returncode == want_code, done.stderr
    result = load(tmp_path / "run" / "knee.json")
    assert [step["users"] for step in result["steps"]] == want_steps
    assert load(tmp_path / "run" / "summary.json")["outcomes"].keys() == {"ok"}


@pytest.mark.parametrize("after_s", [1.0, 8.0, 15.0])
def test_ctrl_c_leaves_a_readable_folder(after_s: float, tmp_path: Path) -> None:
    """Interrupted at any moment: exit 130, and a report of what was measured, if there was any."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "harness", "knee", *ENGINE, "--slo", "ttft_p95=200ms"]
    with subprocess.Popen(
        [*command, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        time.sleep(after_s)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    if (out / "run.json").exists():
        assert (out / "report.md").exists()
        assert load(out / "knee.json")["interrupted"] is True


def test_dry_run_sends_nothing(tmp_path: Path) -> None:
    """The plan in words, no folder."""
    done = harness("knee", *ENGINE, "--dry-run", "--out", str(tmp_path / "run"))
    assert done.returncode == 0
    assert "Levels on the way up: 1, 2, 4" in done.stdout
    assert not (tmp_path / "run").exists()
