"""`fit` against start logs and error reports of vLLM that people published: tests/data/fit.

Configurations are from memory of the published files; some logs name no model, and one was chosen
by its KV cache (`model_chosen_by_kv`): of these only the verdict counts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.memory.cards import GIB
from harness.memory.kv_layout import KvLayout, kv_layout
from harness.memory.parallel import Parallel
from harness.memory.verdict import Room, judge
from harness.server.model_config import model_config, model_shape

DATA = Path(__file__).parent / "data" / "fit"
Log = dict[str, Any]
LOGS: list[Log] = json.loads((DATA / "logs.json").read_text())
OWN: list[Log] = json.loads((DATA / "kv_logs.json").read_text())
DERIVED: list[Log] = json.loads((DATA / "derived.json").read_text())
REFUSED = {"qwen3-next-80b-2xh200", "kimi-linear-48b-awq-2x3090"}  # linear attention
# the report's memory is of a rank with more of it than the one that its tokens are of
OTHER_RANK = {"r1-qwen14b-2x4090-no", "qwen3-235b-fp8-4xh100"}
NO_BLOCKS = {"r1-awq-16x3090"}  # its report has nothing to compare
OLD_TOKENS = {"gemma3-27b-mi300x", "gemma3-1b-5090"}  # blocks // groups x 16: up to 0.13
ONE_BATCH = {"gemma3-27b-mi300x", "gemma3-1b-5090", "exaone4-32b-fp8-l40s"}  # before 0.14
KV_KNOWN = [
    log
    for log in [*LOGS, *OWN]
    if log.get("kv_gib") and log["kv_gib"] > 0 and log["id"] not in REFUSED | OTHER_RANK | NO_BLOCKS
]
CARDS = {
    "RTX 3090": "rtx-3090",
    "RTX 4090": "rtx-4090",
    "A100 40": "a100-40gb",
    "A100 80": "a100",
    "H100": "h100",
    "H200": "h200",
    "L4 ": "l4",
    "L40S": "l40s",
    "A10G": "a10g",
    "MI300X": "mi300x",
    "V100": "v100-32gb",
}


def layout_of(log: Log) -> KvLayout:
    """The KV cache of what the log names."""
    config = log["config"]
    if isinstance(config, str):
        path = config if config.startswith("configs/") else f"configs/{config}/config.json"
        config = model_config(DATA / path)
    step = log.get("max_num_batched_tokens") or 8192
    batches = 1 if log["id"] in ONE_BATCH else 2
    return kv_layout(
        model_shape(config),
        "auto",
        Parallel(log.get("tp", 1), log.get("pp", 1)),
        block_tokens=log.get("block_size") or 16,
        in_flight_tokens=step * batches,
    )


@pytest.mark.parametrize("log", KV_KNOWN, ids=lambda log: str(log["id"]))
def test_given_the_memory(log: Log) -> None:
    """Blocks, tokens, requests, or what one request needs: within 0.5% (most within 0.1%)."""
    layout = layout_of(log)
    length = log.get("max_model_len") or 4096
    memory = log.get("kv_bytes") or log["kv_gib"] * GIB
    blocks = layout.blocks_in([memory])
    concurrency = layout.concurrency(blocks, length)
    found = {
        "blocks": blocks,
        "kv_tokens": concurrency * length,
        "concurrency": concurrency,
        "needed_gib": layout.request_blocks(length) * layout.stage_block_bytes[0] / GIB,
        "estimated_max_model_len": layout.context_in(blocks + 1, 1),
    }
    if log["id"] in OLD_TOKENS:
        del found["kv_tokens"]
    said = {name: log[name] for name in found if log.get(name)}
    assert said
    assert {name: found[name] for name in said} == pytest.approx(said, rel=0.005, abs=0.005)
    if log.get("max_model_len") and "fits" in log:
        start = judge(0, layout.request_blocks(length), Room(blocks, blocks, blocks))
        assert start.fits == log["fits"]


@pytest.mark.parametrize("case", DERIVED, ids=lambda case: str(case["id"]))
def test_derived(case: Log) -> None:
    """As vLLM 0.32's own functions say, to the digit: with asynchronous scheduling and without."""
    shape = model_shape(model_config(DATA / case["config"]))
    for batches, name in ((2, "gpu_async_scheduling_default"), (1, "without_async_scheduling")):
        layout = kv_layout(shape, in_flight_tokens=batches * case["max_num_batched_tokens"])
        blocks = layout.blocks_in([case["kv_gib"] * GIB])
        concurrency = layout.concurrency(blocks, case["max_model_len"])
        found = {
            "bytes_per_block": layout.block_bytes,
            "blocks": blocks,
            "concurrency": round(concurrency, 4),
            "tokens": int(concurrency * case["max_model_len"]),
        }
        assert found == {key: case[name][key] for key in found}
        assert len(layout.groups) == len(case[name]["groups"])
    assert layout.read_bytes(1) == case["bytes_per_token_all_layers"]


def command(log: Log, folder: Path) -> list[str]:
    """`fit` with the flags that the log names."""
    config = log["config"]
    if isinstance(config, dict):
        (folder / "config.json").write_text(json.dumps(config))
    where = folder if isinstance(config, dict) else DATA / config
    flags = {
        "--config": where,
        "--tensor-parallel": log.get("tp"),
        "--gpu-memory-utilization": log.get("gpu_memory_utilization"),
        "--max-model-len": log.get("max_model_len"),
        "--max-num-batched-tokens": log.get("max_num_batched_tokens"),
        "--max-num-seqs": log.get("max_num_seqs"),
        "--gpu": next((CARDS[name] for name in CARDS if name in log.get("gpu", "")), None),
        "--memory": log["total_gib"] * GIB / 1e9 if log.get("total_gib") else None,
    }
    words = [str(word) for flag, value in flags.items() if value for word in (flag, value)]
    return ["fit", *words, *(["--enable-expert-parallel"] if log.get("ep") else [])]


UNKNOWN = {
    # no GPU is named, or one that is not known here
    "qwen3-1.7b-24gb",
    "qwen3-30b-a3b-910b3-weights",
    "llama31-8b-awq",
    "deepseek-v2-lite-need-no",
    "gemma3-1b-5090",
    # what vLLM keeps for itself decides
    "llama31-8b-3090-29000-no",
    "32b-h100-need-no",
    "r1-awq-16x3090",
    "gpt-oss-120b-h100-0.14-no",
}


# of vLLM's present engine (V1), with a card and a share of it; GiB of one GPU
V1 = {
    "llama31-70b-w8a8-h100": 1381 * 16 * 327_680 / GIB,  # of the blocks that it names
    "qwen25-0.5b-4090-0.92": 20.52,
    "qwen3-235b-fp8-8xl40s": 10.65,
    "gemma3-27b-mi300x": 109.86,
    "exaone4-32b-fp8-l40s": 10.31,
    "qwen3-8b-fp8-3090": 8.6,
}


def test_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether vLLM started: right, or unknown; never wrong. And most are right.

    From the model's shape and the card alone the KV cache is within 6% in the median (3.2%).
    """
    codes = {0: True, 99: False, 6: None}
    found = {}
    errors = []
    for log in [*LOGS, OWN[1]]:
        if log["id"] in REFUSED:
            continue
        out = tmp_path / "fit.json"
        found[log["id"]] = codes[main([*command(log, tmp_path), "--json", str(out)])]
        if kv_gib := V1.get(log["id"]):
            got = json.loads(out.read_text())
            errors.append(abs(got["kv_pool_bytes"] / got["gpus"] / GIB / kv_gib - 1))
    capsys.readouterr()
    assert sorted(errors)[len(errors) // 2] < 0.04
    assert len(errors) == len(V1)
    said = {log["id"]: log["fits"] for log in [*LOGS, OWN[1]]}
    assert {name: fits for name, fits in found.items() if fits not in (None, said[name])} == {}
    assert {name for name, fits in found.items() if fits is None} == UNKNOWN
    assert len(found) == 28  # so 19 are right


@pytest.mark.parametrize("name", ["qwen3-next-80b", "kimi-linear-48b"])
def test_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Layers of another kind: one sentence, nothing guessed."""
    assert main(["fit", "--config", str(DATA / "configs" / name), "--gpu", "h100"]) == 2
    assert "whose layers are not known here" in capsys.readouterr().err
