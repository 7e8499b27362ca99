"""--junit: a case per SLO and gate, red exactly where the run is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from harness.core.states import Decision, Status, Verdict
from harness.metrics.result import Gate, Level, Result, SloResult, Target
from harness.report.write import junit

MET = Verdict.met
MISSED = Verdict.missed
OPEN = Verdict.inconclusive
TTFT = "ttft_p95=500ms"
ITL = "itl_p95=50ms"
TPS = "tps_p5=30"
OVER = SloResult(TTFT, MISSED, 612.0, 8, n=120, n_over=30, allowed=0.05)
FEW = SloResult(ITL, OPEN, 40.0, 8, n=20, n_over=1, allowed=0.05, needs_more=80)
FINE = SloResult(ITL, MET, 40.0, 8, n=900, n_over=1, allowed=0.05)
HELD = SloResult(TTFT, MET, 460.2, 34, allowed=0.05)  # of a search: its own test, no planned look
SAID_OVER = f"{TTFT} missed at 8 concurrent requests: 30 of 120 over 500 ms (25.0%; 5% allowed)."
SAID_FEW = (
    f"{ITL} inconclusive at 8 concurrent requests: 1 of 20 over 50 ms (5.0%; 5% allowed); about "
    "80 more requests would decide it."
)
SAID_OPEN = f"{TTFT} inconclusive at 34 concurrent requests: 460 ms"
SAID_SPEED = f"{TPS} inconclusive at 34 concurrent requests: 31.2 tokens/s"
GATE = Gate("holds at least 40", MISSED, "Fails at 38 users; asked for at least 40.")
ERRORS = SloResult("max_errors=1%", MISSED, users=8, n=100, n_over=9, allowed=0.01)
SAID_ERRORS = "SLO missed: 9 of 100 requests failed at 8 concurrent requests (9.0%; 1% allowed)."


@pytest.mark.parametrize(
    ("told", "want"),
    [
        ({"status": Status.met, "slos": (FINE,)}, [(ITL, "system-out", None)]),
        (
            {"status": Status.missed, "exit_code": 99, "slos": (OVER, FINE)},
            [(TTFT, "failure", SAID_OVER), (ITL, "system-out", None)],
        ),
        (
            {"status": Status.inconclusive, "exit_code": 6, "slos": (FEW,)},
            [(ITL, "error", SAID_FEW)],
        ),
        (
            {"status": Status.missed, "exit_code": 99, "slos": (FINE,), "errors": ERRORS},
            [(ITL, "system-out", None), ("max_errors=1%", "failure", SAID_ERRORS)],
        ),
        ({"status": Status.found, "slos": (HELD,)}, [(TTFT, "system-out", None)]),
        (
            {"status": Status.found, "exit_code": 99, "slos": (HELD,), "gates": (GATE,)},
            [(TTFT, "system-out", None), (GATE.name, "failure", GATE.sentence)],
        ),
        (
            {"status": Status.inconclusive, "exit_code": 6, "slos": (replace(HELD, verdict=OPEN),)},
            [(TTFT, "error", f"{SAID_OPEN}; a longer --budget would decide it.")],
        ),
        (
            {"status": Status.missed, "exit_code": 99, "slos": (replace(OVER, slo=TPS),)},
            [
                (
                    TPS,
                    "failure",
                    SAID_OVER.replace("over 500 ms", "under 30 tokens/s").replace(TTFT, TPS),
                )
            ],
        ),
        (
            {
                "status": Status.inconclusive,
                "exit_code": 6,
                "slos": (replace(HELD, slo=TPS, verdict=OPEN, observed=31.2),),
            },
            [(TPS, "error", f"{SAID_SPEED}; a longer --budget would decide it.")],
        ),
        ({"status": Status.measured}, []),
        # red all the same where no case says why
        (
            {"status": Status.invalid, "exit_code": 5, "invalid_reason": "the clock jumped."},
            [("invalid", "error", "invalid: the clock jumped.")],
        ),
        # met where it was judged, and one level was left out
        (
            {
                "status": Status.inconclusive,
                "exit_code": 6,
                "slos": (FINE,),
                "levels": (Level(0, 4, decision=Decision.invalid, reason="the clock jumped"),),
            },
            [
                (ITL, "system-out", None),
                ("inconclusive", "error", "inconclusive: the clock jumped"),
            ],
        ),
        (
            {"status": Status.interrupted, "exit_code": 130, "slos": (FINE,)},
            [(ITL, "system-out", None), ("interrupted", "error", "interrupted: exit code 130")],
        ),
    ],
)
def test_cases(told: dict[str, Any], want: list[tuple[str, str, str | None]]) -> None:
    """Met passes, missed fails, inconclusive is an error that says what would decide it."""
    suite = ET.fromstring(junit(Result(command="run", **told)))  # noqa: S314 - our own
    cases = []
    for case in suite.iter("testcase"):
        ending = case[0]
        cases.append((case.get("name"), ending.tag, ending.get("message")))
    assert cases == want
    kinds = [kind for _, kind, _ in want]
    assert suite.get("tests") == str(len(want))
    assert suite.get("failures") == str(kinds.count("failure"))
    assert suite.get("errors") == str(kinds.count("error"))


def test_a_search_says_what_it_saw() -> None:
    """And the suite says how long it measured and what: whatever a server calls itself."""
    target = Target(url="http://h:1", model='a<b>"\x00\u2028', simulated=True, gpu="h100")
    levels = (Level(0, 8, settled_ns=0, end_ns=1_500_000_000),)
    text = junit(Result(slos=(HELD,), target=target, levels=levels))
    suite = ET.fromstring(text)  # noqa: S314 - our own
    assert suite.get("name") == "vllm-harness knee"
    assert suite.get("time") == "1.500"
    assert suite.findtext("testcase/system-out") == (
        f"{TTFT} met at 34 concurrent requests: 460 ms."
    )
    told = {entry.get("name"): entry.get("value") for entry in suite.iter("property")}
    assert set(told) == {"url", "model", "simulated"}
    assert told["url"] == "http://h:1"
    assert told["model"] == 'a<b>"'
    assert told["simulated"] == 'simulated a<b>" on h100'
