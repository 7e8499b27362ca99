"""The real vLLM on the CPU with a planted knee: `--max-num-seqs S` slots, answers of varied length.

With an SLO that is tight against the service time T the knee is about S (1 + slack / T): below it a
first token takes a few steps, above it a request waits for a slot, T / S on average. How long a
step takes is this machine's matter (10 ms, or 40), so the SLO is set in steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from study_process import check_code, harness, load, measured

from harness.records.folder_reader import read_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SLO_STEPS = 15
NO_LIMIT: dict[str, Any] = {"bound_by": "nothing", "confidence": 0, "window": "", "evidence": []}
SLOTS, ANSWER = 16, 48  # two users too many wait 5 T / S = 15 steps at the 95th percentile
KV_USERS = 12  # far more than its KV blocks hold,
KV_FULL = 0.8  # which shows: of the blocks, or requests that lost theirs
SURE = 0.8  # of a cause: then it has to be the right one, also where the search was inconclusive
BUDGET = "30s"  # a level takes 8 lifetimes of 0.7 s each


def warmed(url: str, users: int, out: Path, traffic: tuple[str, ...]) -> str:
    """The SLO, after a run: a server that has served nothing yet answers first in 0.7 s.

    How long a step takes the server says itself, so a client that was disturbed does no harm.
    """
    load_of = ("--users", str(users), "--requests", str(6 * users), "--out", str(out))
    assert harness("run", url, *load_of, *traffic).returncode in (0, 5)  # 5: a busy machine
    first, *_, last = (sample.histograms["itl"] for sample in read_run(out).server)
    step_ms = 1e3 * (last.sum - first.sum) / (last.counts[-1] - first.counts[-1])
    return f"ttft_p95={SLO_STEPS * step_ms:.0f}ms"


@pytest.mark.vllm
@pytest.mark.realtime
def test_the_planted_knee_of_a_real_vllm(
    vllm: Callable[[str], str], tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """The knee lies about where the slots end; client and server count the same tokens."""
    url = vllm("16 slots")
    traffic = ("--prompt-tokens", "32", "--output-tokens", str(ANSWER), "--quiet")
    slo = warmed(url, SLOTS, tmp_path / "w", traffic)
    out = tmp_path / "run"
    done = harness(
        "knee",
        url,
        "--slo",
        slo,
        "--budget",
        BUDGET,
        "--min-users",
        str(SLOTS // 2),
        "--max-users",
        str(2 * SLOTS),
        *traffic,
        "--out",
        str(out),
    )
    result = load(out / "result.json")
    figure(f"real vLLM, {SLOTS} slots, {slo}: {told(result)}, exit {done.returncode}")
    assert done.returncode in (0, 5, 6, 99), done.stderr  # a noisy machine may leave it undecided
    check_records(result, out)
    if done.returncode != 5:  # of the figures nothing is claimed then
        check_cause(result)
        check_knee(result)


def told(result: dict[str, Any]) -> str:
    """What the search found, in a line."""
    knee, client, verdict = result["knee"], result["client"], result["bottleneck"] or NO_LIMIT
    low, high = knee["ci95"]
    audits = [level["audit"] for level in result["levels"]]
    surplus = max((abs(a["surplus"]) for a in audits if a["server_tokens"]), default=0)
    seen = result["target"]["max_num_seqs"]
    return (
        f"{result['status']}, holds {knee['holds']}, estimate {knee['estimate']} ({low} to "
        f"{high}), stopped by {verdict['bound_by']} (confidence {verdict['confidence']}, from "
        f"{verdict['window']}); {len(result['levels'])} levels, exact stamps "
        f"{client['exact_share']}, client and server tokens differ by {surplus:.1%} at most, "
        f"max_num_seqs {seen['value']} {seen['source']}"
    )


def check_records(result: dict[str, Any], out: Path) -> None:
    """Whole and replayed to the same; the server has what it was started with."""
    client = result["client"]
    assert (result["replay_differences"], result["damage"]) == ([], [])
    assert (client["stamp_source"], client["missing"]) == ("kernel", "")
    assert result["lacking"] == []
    running = [level["server"]["running_mean"] or 0 for level in result["levels"]]
    assert max(running) <= SLOTS
    assert result["target"]["max_num_seqs"]["value"] in (None, SLOTS)  # inferred, if any waited
    cpu_s = [sample.engine_cpu_s for sample in read_run(out).server]
    assert cpu_s[-1] > cpu_s[0]  # from this host's process table


def check_cause(result: dict[str, Any]) -> None:
    """A confident one is right; prefill may bind in truth where others use the machine."""
    verdict = result["bottleneck"] or NO_LIMIT
    named = verdict["bound_by"] if verdict["confidence"] >= SURE else "nothing"
    allowed = {"batch slots", "undecided", "nothing"}
    if result["client"]["exact_share"] < 0.5:  # it got so little CPU that it is a cause indeed
        allowed.add("client")
    assert named in allowed


def check_knee(result: dict[str, Any]) -> None:
    """However sure the search is, its interval reaches to where the slots end, and not far above.

    Half as many users again would wait 24 steps and more.
    """
    low, high = result["knee"]["ci95"]
    assert low <= SLOTS + SLOTS // 2
    assert high is None or high >= SLOTS  # None: no level that was held shows an end


@pytest.mark.vllm
@pytest.mark.realtime
def test_a_real_vllm_with_too_few_kv_blocks(
    vllm: Callable[[str], str], tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """Requests wait for blocks while slots are free: the KV cache is named, not the slots."""
    traffic = ("--prompt-tokens", "32", "--output-tokens", "96", "--quiet")
    url = vllm("few KV blocks")
    slo = warmed(url, 4, tmp_path / "w", traffic)
    out = tmp_path / "run"
    done = harness(
        "knee",
        url,
        "--slo",
        slo,
        "--budget",
        "20s",
        "--min-users",
        "6",
        "--max-users",
        "24",
        *traffic,
        "--out",
        str(out),
    )
    result = load(out / "result.json")
    verdict = result["bottleneck"] or NO_LIMIT
    figure(
        f"real vLLM, 33 KV blocks of 32 tokens, {slo}: {result['status']}, knee "
        f"{result['knee']['estimate']} of {result['knee']['ci95']}, stopped by "
        f"{verdict['bound_by']} "
        f"(confidence {verdict['confidence']}, from {verdict['window']}): "
        f"{'; '.join(verdict['evidence'])}; exit {done.returncode}"
    )
    assert done.returncode in (0, 5, 6, 99), done.stderr
    # What the server said counts, whatever became of the client's figures. A search may have ended
    # below KV_USERS, so they are asked for once more.
    measured("run", url, "--users", str(KV_USERS), "--requests", "48", *traffic, out=tmp_path / "k")
    samples = read_run(tmp_path / "k").server
    lost_blocks = samples[-1].preemptions_total - samples[0].preemptions_total
    assert max(lost_blocks, *(sample.kv_usage for sample in samples)) >= KV_FULL
    if done.returncode == 5:
        return
    if result["status"] == "found" or verdict["confidence"] >= SURE:
        assert verdict["bound_by"] == "KV cache capacity"


@pytest.mark.vllm
@pytest.mark.process
def test_a_real_vllm_that_speculates(
    vllm: Callable[[str], str], tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """Events carry several tokens: gaps per event and per token, and the server's acceptance."""
    url, out = vllm("speculating"), tmp_path / "run"
    lengths = ("--prompt-tokens", "32", "--output-tokens", "256", "--workload", "fixed")
    # long enough for several readings of the server beside other tests
    done = harness(
        "run", url, "--users", "2", "--requests", "16", "--out", str(out), *lengths, timeout_s=600
    )
    check_code(done.returncode, done.stdout + done.stderr, 0)
    (level,) = load(out / "result.json")["levels"]
    server, per_event, per_token = level["server"], level["itl_ms"], level["itl_per_token_ms"]
    figure(
        f"real vLLM, n-grams: {server['spec_acceptance']:.0%} of drafted tokens accepted, "
        f"{server['spec_accepted_length']:.2f} tokens a draft, {level['tokens_per_event']:.2f} an "
        f"event; ITL per event {per_event['mean']:.1f} ms, per token {per_token['mean']:.1f} ms"
    )
    assert 0 < server["spec_acceptance"] <= 1
    assert 1 < server["spec_accepted_length"] <= 4  # three drafted ones and the model's own
    assert level["tokens_per_event"] > 1
    assert per_token["mean"] < per_event["mean"]
    assert per_token["n"] > per_event["n"]
