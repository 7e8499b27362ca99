"""What idle sessions cost: the command on the embedded engine, its page and its refusals."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from study_process import harness, load

from harness.cli import main
from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.errors import ConfigError
from harness.lifecycle import idle_cost
from harness.lifecycle.idle_cost import NEWCOMERS, NO_RESET, IdleCost, IdlePlan, Returns
from harness.report.templates import render
from harness.server.access import TargetAccess
from harness.server.address import Address
from harness.wire.kv_cache import cache_summary

if TYPE_CHECKING:
    from pathlib import Path

PLAN = IdlePlan(sessions=4, history_tokens=512, message_tokens=32, output_tokens=4, idle_s=0.0)
NEW = Returns((0.04, 0.05, 0.06), 32, 0.0)
FOUND = IdleCost(
    plan=PLAN,
    model="m",
    simulated="",
    kv_tokens=8192,
    kv_usage_idle=0.0,
    first=Returns((0.2, 0.3, 0.25, 0.22), 512, 0.0),
    kept=Returns((0.05, 0.04, 0.06, 0.07), 544, 2048.0),
    newcomer_beside=NEW,
    cleared=Returns((0.2, 0.25, 0.3, 0.35), 544, 0.0),
    newcomer_after=NEW,
)


def test_what_follows() -> None:
    """4 x 512 of 8,192 tokens are a quarter; medians of 55 and 275 ms differ by 220."""
    assert FOUND.history_share == 0.25
    assert FOUND.kept.cached_share == pytest.approx(2048 / (4 * 544))
    assert FOUND.saved_s == pytest.approx(0.22)


@pytest.mark.parametrize(
    "said",
    [
        "4 sessions with a history of 512 tokens each were idle for 0 s",
        "| return, kept | 544 | 55.0 | 40.0 to 70.0 | 94% | comes back to a history that nobody c",
        "| return, cleared | 544 | 275.0 | 200.0 to 350.0 | 0% | comes back after `/reset_prefix_",
        "No batch slot, because none of their requests is running. Their histories need 2,048 of ",
        "need 2,048 of 8,192 KV tokens, 25% of the cache; 16 such histories fit. Blocks of an idle",
        "running request that needs them, and reports 0.0% of the cache in use while all are idle.",
        "after 55.0 ms with the history kept and after 275 ms once it was cleared: 220 ms of",
        "of prefill that every return pays after clearing.\n\n**What clearing gives.**",
        "after 50.0 ms with nothing cached: clearing is not shown to help newcomers.\n\n**What a",
        "starts again with 32 tokens and has its first token after 50.0 ms",
    ],
)
def test_the_page(said: str) -> None:
    """One row per kind of request, and a sentence per question."""
    page = render("idle_cost.md.j2", found=FOUND)
    assert said in page
    assert "Simulated" not in page


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"simulated": "m on h100"}, "# What idle sessions cost\n\nSimulated: m on h100, no real"),
        # one of four returns was as slow as after clearing
        (
            {"kept": Returns((0.05, 0.04, 0.06, 0.3), 544, 2048.0)},
            "after 55.0 ms with the history kept and after 275 ms once it was cleared; the two are",
        ),
        (
            {"kept": Returns((0.3, 0.2, 0.25, 0.3), 544, 0.0)},
            "Only 0% of the kept prompts were still in the cache: other requests had taken the ",
        ),
        ({"newcomer_beside": Returns((0.2,) * 5, 32)}, "after 50.0 ms with nothing cached.\n\n"),
        ({"kv_tokens": 1024}, "200% of the cache, so not all of them can stay; 2 such histories"),
    ],
)
def test_the_page_of_others(changed: dict[str, Any], said: str) -> None:
    """A simulated server, differences that are not shown, histories that do not fit."""
    assert said in render("idle_cost.md.j2", found=replace(FOUND, **changed))


def test_a_server_that_cannot_clear() -> None:
    """The rows are missing, and the note says how to get them."""
    without = IdleCost(
        PLAN, "m", "", None, None, FOUND.first, Returns((0.05,), 544), NEW, None, None, (NO_RESET,)
    )
    page = render("idle_cost.md.j2", found=without)
    assert "return, cleared" not in page
    assert "What clearing gives" not in page
    assert "VLLM_SERVER_DEV_MODE=1" in page
    assert "The server does not say how large its KV cache is." in page
    assert "| return, kept | 544 | 50.0 | 50.0 to 50.0 | \u2013 |" in page


@pytest.mark.parametrize(("limit", "said"), [(100, "--history-tokens 64"), (30, "fewer --message")])
def test_no_room_for_a_return(limit: int, said: str) -> None:
    """What to try is possible."""
    with pytest.raises(ConfigError, match=f"try {said}"):
        idle_cost.check_length(PLAN, limit)


def test_the_size_of_a_kv_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers with windows share blocks: vLLM's own figure counts, not that of all blocks."""
    labels = {"block_size": "16", "num_gpu_blocks": "65536", "kv_cache_size_tokens": "1322342"}
    found = SimpleNamespace(
        model="m", version="0.32.0", max_model_len=8192, cache=cache_summary([labels])
    )
    monkeypatch.setattr(idle_cost, "probe", lambda *_: found)
    monkeypatch.setattr(idle_cost.Asker, "ask", lambda *_: NEW)
    monkeypatch.setattr(idle_cost.Asker, "figure", lambda *_: float("nan"))
    monkeypatch.setattr(idle_cost.Asker, "clear", lambda *_: False)
    access = TargetAccess(Address.parse("http://127.0.0.1:1"))
    assert idle_cost.measure_idle_cost(access, PLAN, None).kv_tokens == 1_322_342


@pytest.mark.process
def test_on_the_embedded_engine(tmp_path: Path) -> None:
    """A history is found again by whole blocks, and not after it was cleared."""
    out = tmp_path / "idle"
    asked = ("--sessions", "3", "--history-tokens", "512", "--idle", "100ms", "--out", str(out))
    with start_engine(EngineConfig(max_num_seqs=4)) as engine:
        done = harness("idle-cost", engine.url, *asked)
        again = harness("idle-cost", engine.url, "--history-tokens", "9000")
    assert done.returncode == 0
    assert done.stderr == ""
    found = load(out / "idle_cost.json")
    cached = [found[name]["cached_tokens"] for name in ("first", "kept", "cleared")]
    assert cached == [0, 3 * 512, 0]
    assert found["simulated"] == "llama-3.1-8b"
    assert "\nSimulated: llama-3.1-8b, no real server.\n" in done.stdout
    assert len(found["newcomer_after"]["ttft_s"]) == NEWCOMERS
    assert (out / "idle_cost.md").read_text() in done.stdout
    assert again.returncode == 2
    assert again.stdout == ""
    assert "8,192 tokens, and a return needs 9,040: expected at most that" in again.stderr


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["http://127.0.0.1:1"], "nothing listens at http://127.0.0.1:1"),
        (["127.0.0.1:8000"], "try http://127.0.0.1:8000"),
        (["http://127.0.0.1:1", "--sessions", "0"], "--sessions is"),
        (["http://127.0.0.1:1", "--idle", "10"], "--idle is '10'"),
    ],
)
def test_refused(asked: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is written."""
    assert main(["idle-cost", *asked]) in (2, 3)
    assert message in capsys.readouterr().err
