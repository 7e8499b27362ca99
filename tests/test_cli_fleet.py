"""`fleet`: from a knee to replicas, money and energy; every number can be checked by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from harness.cli.app import main

if TYPE_CHECKING:
    from pathlib import Path

# 40 users at 80 requests/s: each request takes 0.5 s. At 50 users there are 1,250 tokens/s, 900 W.
RESULT: dict[str, Any] = {
    "status": "found",
    "target": {"model": "m", "flags": {"tensor_parallel_size": 2}},
    "knee": {
        "holds": 40, "estimate": 45, "ci95": [40, 50], "measured_at_users": 40,
        "criterion": "ttft_p95=500ms", "output_tokens_per_s": 1000.0, "requests_per_s": 80.0,
    },
    "levels": [
        {"index": 0, "users": 40, "settled_ns": 0, "end_ns": 20, "decision": "pass",
         "output_tokens_per_s": 1000.0, "gpu": {"gpus": 2, "power_w": 800.0}},
        {"index": 1, "users": 50, "settled_ns": 20, "end_ns": 40, "decision": "fail",
         "output_tokens_per_s": 1250.0, "gpu": {"gpus": 2, "power_w": 900.0}},
    ],
}  # fmt: skip
# 60 requests/s with 30 in flight
BY_RATE = RESULT | {
    "knee": RESULT["knee"]
    | {
        "holds": 60.0,
        "estimate": 66.0,
        "ci95": [60.0, 72.0],
        "requests_per_s": 60.0,
        "unit": "requests/s",
        "measured_at_users": None,
        "measured_at_per_s": 60.0,
        "in_flight": 30.0,
    },
    "levels": [
        level | {"users": 0, "rate_per_s": rate, "in_flight": 30.0}
        for level, rate in zip(RESULT["levels"], (60.0, 72.0), strict=True)
    ],
}

# 200 sessions at 40 requests/s: a turn each 5 s, of which 0.5 s are waited for, so 20 in flight
SESSIONS = RESULT | {
    "unit": "session",
    "knee": RESULT["knee"]
    | {
        "holds": 200,
        "estimate": 210,
        "ci95": [200, 220],
        "requests_per_s": 40.0,
        "unit": "sessions",
        "measured_at_users": 200,
        "in_flight": 20.0,
    },
}

# No level failed, so that the upper end of the interval is not known.
OPEN = RESULT | {
    "knee": RESULT["knee"] | {"ci95": [32, 2048]},
    "levels": [level | {"decision": "pass"} for level in RESULT["levels"]],
}
# the knee says that a level failed, whose figures cannot be used
CLOSED = OPEN | {"knee": OPEN["knee"] | {"ci95": [32, 64], "fails_by": 65}}


def said(
    path: Path, result: dict[str, Any], capsys: pytest.CaptureFixture[str], *words: str
) -> str:
    """What the command prints; the folder holds nothing but the result."""
    (path / "result.json").write_text(json.dumps(result))
    assert main(["fleet", str(path), *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("result", "options", "load", "replicas"),
    [
        # 1,000 / 40, and / 50 at the other end
        (RESULT, "--users 1000", "1,000 requests in flight, 1,000 in", "25 (20 to 25), of which 0"),
        (OPEN, "--users 1000", "1,000 requests in flight", "25 (at most 32), of which 0"),
        (CLOSED, "--users 1000", "1,000 requests in flight", "25 (16 to 32), of which 0"),
        (RESULT, "--users 1000 --survive 2", "1,000 requests", "27 (22 to 27), of which 2"),
        # 1,000 x 0.5 / 10 = 50; half as many again: 75; the share that thinks is 0.95:
        # 75 + 1.645 x sqrt(75 x 0.95) = 88.9
        (RESULT, "--users 1000 --think-time 9.5s --peak-over-mean 1.5",
         "75.0 requests in flight, 88.9 in", "3 (2 to 3), of which 0"),
        # 300 x 0.5 = 150; Poisson: 150 + 1.645 x sqrt(150) = 170.1
        (RESULT, "--rate 300/s", "150 requests in flight, 170 in", "5 (4 to 5), of which 0"),
        # in rates no sum of chance is needed: the run had it
        (BY_RATE, "--rate 300/s", "150 requests in flight", "5 (5 to 5), of which 0"),
        # 3,000 / (0.5 + 9.5) = 300 requests/s
        (BY_RATE, "--users 3000 --think-time 9.5s", "150 requests", "5 (5 to 5), of which 0"),
        # 1,000 / 200, and / 220; a tenth of the sessions waits for an answer
        (SESSIONS, "--users 1000", "100 requests in flight, 116 in", "5 (5 to 5), of which 0"),
        # 300 requests/s x 5 s = 1,500 sessions
        (SESSIONS, "--rate 300/s", "150 requests in flight, 170 in", "8 (7 to 8), of which 0"),
    ],
)  # fmt: skip
def test_replicas(tmp_path, capsys, result, options, load, replicas):
    """By the lower end of the knee, with both ends of its interval; users and rates by Little."""
    lines = said(tmp_path, result, capsys, *options.split()).splitlines()
    assert load in lines[1]
    assert lines[2].startswith(f"Replicas: {replicas} may fail, ")


def test_money_and_energy(tmp_path, capsys):
    """Two GPUs at 1.8: 3.6 per hour for 1,000 tokens/s is 1.00 per million, at 1,250 it is 0.80."""
    options = ("--users", "1000", "--think-time", "9.5s", "--gpu-hour", "1.8")
    *_, cost, energy = said(tmp_path, RESULT, capsys, *options).splitlines()
    # each replica has 40 x 10 / 0.5 = 800 users: 3.6 / 800; at 50 in flight 1,000
    assert cost == (
        "Cost at the knee: 1.00 per million output tokens (0.800 to 1.00), 0.00450 per user-hour "
        "(0.00360 to 0.00450); 7.20 an hour."
    )
    # 1,000 tokens/s / 800 W, and 800 users on 0.8 kW
    assert energy == (
        "Energy of the GPUs at the knee: 1.25 output tokens per joule, 1,000 users per kilowatt."
    )


@pytest.mark.parametrize(
    ("result", "knee", "per_tokens", "per_user"),
    [
        (RESULT, "95% interval 40 to 50", "1.00 per million output tokens (0.800 to 1.00)",
         "0.0900 per user-hour (0.0720 to 0.0900)"),
        # 3.6 / 32
        (OPEN, "95%: at least 32", "1.00 per million output tokens (at most 1.00)",
         "0.0900 per user-hour (at most 0.112)"),
    ],
)  # fmt: skip
def test_an_upper_end_that_is_not_known(tmp_path, capsys, result, knee, per_tokens, per_user):
    """Where no level failed the interval has none, and figures fall as the knee rises."""
    options = ("--users", "1000", "--gpu-hour", "1.8")
    first, *_, cost, _ = said(tmp_path, result, capsys, *options).splitlines()
    assert f": 40 users ({knee}) with " in first
    assert cost.startswith(f"Cost at the knee: {per_tokens}, {per_user}; ")


def test_what_is_not_known_is_not_said(tmp_path, capsys):
    """Without a price no cost, without NVML no energy; a simulated server is named as such."""
    levels = [level | {"gpu": {}} for level in RESULT["levels"]]
    target = {"model": "m", "simulated": True, "gpu": "h100"}
    found = said(tmp_path, RESULT | {"levels": levels, "target": target}, capsys, "--users", "9")
    assert found.startswith("One replica (1 GPU, simulated m on h100): 40 users (95% interval 40 ")
    assert found.count("\n") == 3


@pytest.mark.parametrize(
    ("result", "options", "code", "says"),
    [
        (RESULT, "--users 10 --rate 2/s", 2, "argument --rate: not allowed with argument --users"),
        (RESULT, "", 2, "one of the arguments --users --rate is required"),
        (RESULT | {"unit": "session"}, "--users 10 --think-time 1s", 2,
         "the knee is of sessions, whose pauses are in it"),
        (RESULT | {"status": "inconclusive"}, "--users 10", 6, "its status is inconclusive"),
    ],
)  # fmt: skip
def test_refused(tmp_path, capsys, result, options, code, says):
    """In a sentence."""
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert main(["fleet", str(tmp_path), *options.split()]) == code
    assert says in capsys.readouterr().err
