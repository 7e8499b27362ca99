"""The TTFT split of a real vLLM on the CPU, from its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from study_process import harness, load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PARTS = ("queue", "prefill", "rest", "residual")
REQUESTS = 160


@pytest.mark.vllm
@pytest.mark.process
def test_the_split_of_a_real_vllm(
    vllm: Callable[[str], str], tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """From empty to empty the split is exact, and its parts add up to the client's mean."""
    url, out = vllm("speculating"), tmp_path / "run"
    traffic = ("--prompt-tokens", "32", "--output-tokens", "16", "--quiet", "--users", "8")
    harness("run", url, "--requests", "16", *traffic, "--out", str(tmp_path / "w"))
    done = harness("run", url, "--requests", str(REQUESTS), *traffic, "--out", str(out))
    (step,) = load(out / "result.json")["levels"]
    split = step["ttft_split"]
    figure(
        f"real vLLM: mean TTFT {split['client_ms']:.1f} ms = "
        + " + ".join(f"{part} {split[f'{part}_ms']:.1f}" for part in PARTS)
        + f"; exact: {split['exact']}, n {split['n']}"
    )
    assert done.returncode in (0, 5), done.stderr  # a noisy machine may make it unusable
    assert (split["exact"], split["n"] >= REQUESTS) == (True, True)  # the warm-up's requests too
    assert sum(split[f"{part}_ms"] for part in PARTS) == pytest.approx(split["client_ms"])
