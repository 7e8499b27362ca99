"""TTFT split request by request, from the traces of a real vLLM on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from study_process import harness, load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from real_vllm import Served

PARTS = ("queue", "prefill", "rest", "residual")
REQUESTS = 160


@pytest.mark.vllm
@pytest.mark.process
def test_a_real_vllm_traces_each_request(
    vllm: Callable[[str], Served], tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """Each request has its trace; their mean is that of the histograms, over the whole run.

    Beside other tests: what is compared was measured by the same clocks at the same time.
    """
    out = tmp_path / "run"
    server = vllm("speculating")
    traffic = ("--prompt-tokens", "32", "--output-tokens", "16", "--quiet", "--users", "8")
    harness("run", server.url, "--requests", "16", *traffic, "--out", str(tmp_path / "w"))
    done = harness("run", server.url, "--requests", str(REQUESTS), *traffic, "--out", str(out),
                   "--otlp-port", str(server.spare))  # fmt: skip
    (step,) = load(out / "result.json")["levels"]
    split, traced = step["ttft_split"], step["ttft_traced"]
    figure(
        f"real vLLM: mean TTFT {split['client_ms']:.1f} ms = "
        + " + ".join(f"{part} {split[f'{part}_ms']:.1f}" for part in PARTS)
        + f"; exact: {split['exact']}, n {split['n']}; of {traced['n']} traces p50 queue "
        f"{traced['queue_p50_ms']:.1f}, prefill {traced['prefill_p50_ms']:.1f}, rest "
        f"{traced['rest_p50_ms']:.1f}, residual {traced['residual_p50_ms']:.1f} ms"
    )
    assert done.returncode in (0, 5), done.stderr  # a noisy machine may make it unusable
    assert (split["exact"], split["n"] >= REQUESTS) == (True, True)  # the warm-up's requests too
    assert traced["n"] == traced["sent"]
    assert sum(split[f"{part}_ms"] for part in PARTS) == pytest.approx(split["client_ms"])
    assert sum(traced[f"{part}_ms"] for part in PARTS) == pytest.approx(traced["client_ms"])
    if traced["n"] == split["n"]:  # the window held the whole run
        for part in PARTS:
            assert traced[f"{part}_ms"] == pytest.approx(split[f"{part}_ms"], abs=0.5), part
