"""`vllm bench serve` and ours with `--compat vllm-bench` against the same real vLLM, in turn.

At two users neither client is busy: what ours says that the tool would print is what it prints, as
far as the machine's noise lets two runs agree. The figures go to the summary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from real_vllm import bench_serve
from study_process import harness, load, measured

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REQUESTS, PROMPT, ANSWER = 48, 64, 32  # so many that a few late ones move no mean by much
APIS = {  # ours -> the tool's backend and path
    "completions": ("openai", "/v1/completions"),
    "chat": ("openai-chat", "/v1/chat/completions"),
}
NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}  # our key -> the tool's
STATISTICS = ("mean", "p50", "p99")
FACTOR = 3  # sanity only, wide: between two runs this machine may be given to somebody else

# of its result: what `report --format vllm-bench` leaves out; see docs/compat.md
LEFT_OUT = {"max_output_tokens_per_s", "max_concurrent_requests", "rtfx"}

Figures = dict[tuple[str, str], float]  # by metric and statistic


def bench(vllm: str, url: str, folder: Path, api: str) -> Figures:
    """The tool's, ms."""
    backend, path = APIS[api]
    saved = bench_serve(
        vllm,
        url,
        folder / f"{api}.json",
        "--backend",
        backend,
        "--endpoint",
        path,
        "--max-concurrency",
        "2",
        "--num-prompts",
        str(REQUESTS),
        "--seed",
        str(list(APIS).index(api)),
        "--random-input-len",
        str(PROMPT),
        "--random-output-len",
        str(ANSWER),
    )
    assert (saved["completed"], saved["total_output_tokens"]) == (REQUESTS, REQUESTS * ANSWER)
    return {(k, s): saved[f"{s}_{name}_ms"] for k, name in NAMES.items() for s in STATISTICS}


def ours(url: str, out: Path, api: str) -> Figures:
    """What ours says that the tool would print, ms.

    Empty where all requests were left out, as the client was too busy; the answer says so.
    """
    said = measured(
        "run",
        url,
        "--users",
        "2",
        "--requests",
        str(REQUESTS),
        "--workload",
        "fixed",
        "--api",
        api,
        "--prompt-tokens",
        str(PROMPT),
        "--output-tokens",
        str(ANSWER),
        "--quiet",
        "--compat",
        "vllm-bench",
        out=out,
    )
    assert "Beside vllm bench serve" in said
    level: dict[str, Any] = load(out / "result.json")["compat"]["vllm-bench"]["levels"][0]
    assert level["approximate"] == ""
    same_fields(load(out.parent / f"{api}.json"), out)
    if not level["requests"]:
        return {}
    found = {(row["metric"], row["statistic"]): row["theirs"] for row in level["rows"]}
    return {(k, s): found[k, s] for k in NAMES for s in STATISTICS}


def same_fields(tools: dict[str, Any], out: Path) -> None:
    """Our file for readers of the tool's has every field of its own, and of the same type."""
    report = harness("report", str(out), "--format", "vllm-bench")
    assert "vllm-bench-2-users.json" in report.stdout
    mine = load(out / "vllm-bench-2-users.json")
    per_request = {name for name, value in tools.items() if isinstance(value, list)}
    assert tools.keys() - mine.keys() <= LEFT_OUT | per_request
    for name in tools.keys() & mine.keys():
        if mine[name] is not None and tools[name] is not None:
            assert type(mine[name]) is type(tools[name]), name


@pytest.mark.vllm
@pytest.mark.realtime
@pytest.mark.parametrize("api", APIS)
def test_ours_says_what_the_tool_prints(
    vllm: Callable[[str], str],
    vllm_command: str,
    api: str,
    tmp_path: Path,
    figure: Callable[[str], None],
) -> None:
    """Means of one run each agree, on both APIs; the server has served a little before."""
    url = vllm("16 slots")
    warm = ("--users", "2", "--requests", "8", "--prompt-tokens", str(PROMPT))
    warm += ("--output-tokens", str(ANSWER), "--quiet", "--out", str(tmp_path / "warm"))
    assert harness("run", url, *warm).returncode in (0, 5)  # 5: a busy machine
    tool = bench(vllm_command, url, tmp_path, api)
    mine = ours(url, tmp_path / api, api)
    if not mine:
        figure("vllm bench serve and ours: ours left out all of its requests")
    for key in NAMES if mine else ():
        told = [f"{s} {tool[key, s]:.2f} and {mine[key, s]:.2f}" for s in STATISTICS]
        figure(f"vllm bench serve and ours, {key} in ms: {', '.join(told)}")
        # a median gap is 0 where a busy tool reads several tokens at once; the mean stays
        assert tool[key, "mean"] / FACTOR < mine[key, "mean"] < tool[key, "mean"] * FACTOR
