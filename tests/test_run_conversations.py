"""Sessions as a command sends them to the embedded server, and what its folder says of them."""

from __future__ import annotations

import html
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from study_process import check_code, harness, load

from harness import open_run
from harness.diagnosis.audit import KV_BLOCK_TOKENS
from harness.load.conversations import session_turns
from harness.load.workloads import workload

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from harness.load.workloads import Workload

pytestmark = pytest.mark.process
LOAD = (
    "--embedded",
    "--workload",
    "agent",
    "--prompt-tokens",
    "48",
    "--output-tokens",
    "12",
    "--think-time",
    "lognormal:300ms:0.5",
    "--quiet",
)


def test_sessions_from_two_processes(tmp_path: Path) -> None:
    """Turns in order and as planned, hits as expected, no level thrown out, sessions by name."""
    out = tmp_path / "run"
    done = harness(
        "run",
        *LOAD,
        "--users",
        "6",
        "--duration",
        "8s",
        "--processes",
        "2",
        "--tools",
        "2",
        "--out",
        str(out),
    )
    check_code(done.returncode, done.stdout + done.stderr, 0)
    (level,) = load(out / "result.json")["levels"]
    assert level["outcomes"].keys() == {"ok"}
    hits = level["prefix"]
    assert hits["requests"] > 50
    assert abs(hits["counted"] - hits["expected"]) <= KV_BLOCK_TOKENS * hits["requests"]
    assert hits["counted"] > 0.5 * level["prompt_tokens_per_s"] * 8  # most of it is history
    page = html.unescape((out / "report.html").read_text())
    heads = ["Prefix hits, tokens", "sessions of 8 turns, hist"]
    if done.returncode == 0:  # latencies of a client that was too busy are not shown
        assert "6 sessions: p95 TTFT" in done.stdout
        assert level["little"]["z_s"] == pytest.approx(0.3, rel=0.3)
        heads += ["TTFT by turn", "turn of the session"]
    assert [head for head in heads if head not in page] == []

    requests = open_run(out).requests.sort_values("sent_at")
    assert sorted(requests.worker.unique()) == [0, 1]
    assert (requests.think_ms > 0).all()
    context = load(out / "run.json")["config"]["drive"]["workload"]["max_model_len"]
    planned = replace(workload("agent").sized(48, 12), max_model_len=context)
    for (_, user), of_user in requests.groupby(["worker", "user"]):
        check_user(of_user, int(user), planned)


def check_user(requests: pd.DataFrame, user: int, planned: Workload) -> None:
    """Turn after turn, session after session, each with as many tokens as were planned."""
    sessions = requests.session.astype(int)
    places = list(zip(sessions, requests.turn.astype(int), strict=True))
    assert places == sorted(set(places))
    turns = {n: session_turns(planned, 1, user, n) for n in sessions}
    for session, turn in places[:-1]:
        is_last = turn + 1 == len(turns[session])
        following = (session + 1, 0) if is_last else (session, turn + 1)
        assert following in places
    wanted = [turns[session][turn].output for session, turn in places]
    assert requests.planned_tokens.astype(int).tolist() == wanted


@pytest.mark.parametrize("flags", [(), ("--history", "last:2")])
def test_real_replies_go_into_the_history(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Answers of whatever length make the next prompt as long, and are found in the cache."""
    out = tmp_path / "run"
    done = harness(
        "run",
        *LOAD,
        "--users",
        "4",
        "--duration",
        "5s",
        "--replies",
        "real",
        *flags,
        "--out",
        str(out),
    )
    check_code(done.returncode, done.stdout + done.stderr, 0)
    (level,) = load(out / "result.json")["levels"]
    assert level["outcomes"].keys() == {"ok"}
    requests = open_run(out).requests
    keys = ["worker", "user", "session", "turn"]
    before = requests.assign(turn=requests.turn + 1)[[*keys, "prompt_tokens", "output_tokens"]]
    both = requests.merge(before, on=keys, suffixes=("", "_before"))
    both = both[both.turn <= 2] if flags else both
    grown = (both.prompt_tokens - both.prompt_tokens_before).astype(int)
    assert len(both) > 5
    # its answer, word by word, a new message, and the template around both
    assert (grown > both.output_tokens_before.astype(int)).all()
