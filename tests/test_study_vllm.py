"""The real vLLM on the CPU with a planted knee: `--max-num-seqs S` seats, answers of varied length.

With an SLO that is tight against the service time T the knee is about S (1 + slack / T).
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from real_vllm import real_vllm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SLO = "ttft_p95=80ms"


@pytest.mark.vllm
@pytest.mark.parametrize("seats", [2, 4, 8, 16])
def test_the_planted_knee_of_a_real_vllm(
    seats: int, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """The knee lies about where the seats end, and the verdict names them."""
    out = tmp_path / "run"
    with real_vllm(tmp_path / "vllm.log", "--max-num-seqs", str(seats)) as url:
        done = subprocess.run(
            [
                sys.executable, "-m", "harness", "knee", url, "--slo", SLO, "--max-users",
                str(4 * seats), "--budget", "60s", "--prompt-tokens", "32", "--output-tokens",
                "256", "--out", str(out), "--quiet",
            ],
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
    result = json.loads((out / "knee.json").read_text())
    knee, verdict = result["knee"], result["verdict"]
    figure(
        f"real vLLM, {seats} seats: {result['status']}, knee {knee['users']} "
        f"({knee['ci95'][0]} to {knee['ci95'][1]}), stopped by {verdict['bound_by']}, exact stamps "
        f"{result['client'].get('exact_share')}, exit {done.returncode}"
    )
    assert result["replay_differences"] == []
    assert result["client"]["stamp_source"] == "kernel"
    # sanity only: what this machine's noise leaves undecided, the figure above says
    assert done.returncode in (0, 5, 6, 99), done.stderr
    assert len(result["steps"]) >= 1
    if result["status"] == "found":
        assert knee["ci95"][0] <= 2 * seats
        assert knee["ci95"][1] >= seats // 2
