"""`vllm bench serve` and ours with `--compat vllm-bench` against the same real vLLM, in turn.

At two users neither client is busy: what ours says that the tool would print is what it prints, as
far as the machine's noise lets two runs agree. The figures go to the summary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from real_vllm import bench_serve, real_vllm
from study_process import harness, load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REQUESTS, PROMPT, ANSWER = 40, 64, 32
APIS = {"completions": "openai", "chat": "openai-chat"}  # ours -> the tool's backend
NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}  # our key -> the tool's
STATISTICS = {"mean": "mean", "p50": "p50", "p99": "p99"}
FACTOR = 3  # sanity only, wide: between two runs this machine may be given to somebody else


def bench(url: str, folder: Path, api: str, seed: int) -> dict[tuple[str, str], float]:
    """The tool's figures, ms."""
    path = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}[api]
    saved = bench_serve(
        url, folder, "--backend", APIS[api], "--endpoint", path, "--max-concurrency", "2",
        "--num-prompts", str(REQUESTS), "--seed", str(seed),
        "--random-input-len", str(PROMPT), "--random-output-len", str(ANSWER),
    )  # fmt: skip
    assert (saved["completed"], saved["total_output_tokens"]) == (REQUESTS, REQUESTS * ANSWER)
    return {(k, s): saved[f"{s}_{name}_ms"] for k, name in NAMES.items() for s in STATISTICS}


def ours(url: str, folder: Path, api: str, seed: int) -> dict[tuple[str, str], float]:
    """What ours says that the tool would print, ms."""
    done = harness(
        "run", url, "--users", "2", "--requests", str(REQUESTS), "--workload", "fixed",
        "--api", api, "--prompt-tokens", str(PROMPT), "--output-tokens", str(ANSWER),
        "--seed", str(seed), "--quiet", "--out", str(folder / "run"), "--compat", "vllm-bench",
    )  # fmt: skip
    assert "Beside vllm bench serve" in done.stdout, done.stderr
    level: dict[str, Any] = load(folder / "run/result.json")["compat"]["vllm-bench"]["levels"][0]
    assert level["approximate"] == ""
    found = {(row["metric"], row["statistic"]): row["theirs"] for row in level["rows"]}
    return {(k, s): found[k, s] for k in NAMES for s in STATISTICS}


@pytest.mark.vllm
def test_ours_says_what_the_tool_prints(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """Medians of one run each agree, on both APIs; the server has served a little before."""
    with real_vllm("compat") as server:
        url = server.url
        warm = ("--users", "2", "--requests", "8", "--quiet", "--out", str(tmp_path / "warm"))
        assert harness("run", url, *warm).returncode in (0, 5)  # 5: a busy machine
        for api in APIS:
            found = {}
            for who, run in (("tool", bench), ("ours", ours)):
                folder = tmp_path / f"{api}-{who}"
                folder.mkdir()
                found[who] = run(url, folder, api, len(folder.name))
            for key in NAMES:
                told = []
                for statistic in STATISTICS:
                    tool, mine = (found[who][key, statistic] for who in ("tool", "ours"))
                    told.append(f"{statistic} {tool:.2f} and {mine:.2f}")
                    if statistic == "p50":
                        assert tool / FACTOR < mine < tool * FACTOR
                figure(f"vllm bench serve and ours, {api}, {key} in ms: {', '.join(told)}")
