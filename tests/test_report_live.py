"""The live view: what servers say is text, never markup; counts; looking forgets nothing."""

from __future__ import annotations

from array import array
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from harness.cli.front import affordable_ns, counts
from harness.measure.ledger import Ledger
from harness.measure.records import Outcome, RequestRecord
from harness.report.live import Live, LiveView, line, panel
from harness.units import SECOND

VIEW = LiveView(
    "vllm-harness knee", 3, "bisect", "measuring", 48, 48, 40 * SECOND,
    {"TTFT": "412 ms (398 to 432)", "ITL": ""}, "1,580 tokens/s", "37 ended, 2 failed",
    "40 running, 8 waiting", "between 32 and 64",
    [("1", "pass", "0 of 14 over ttft_p95=500ms"), ("64", "fail", "9 of 9 over itl_p95=50ms")],
)  # fmt: skip
REST = "37 ended, 2 failed, 40 s left at most"


def drawn(view: LiveView) -> str:
    """The panel on a terminal of 100 columns that knows colours."""
    out = StringIO()
    Console(file=out, width=100, color_system=None, force_terminal=True).print(panel(view))
    return out.getvalue()


@pytest.mark.parametrize(
    ("span_s", "events", "want_s"),
    [
        (30, 30_000, 30),  # 1,000 events a second: the most that is looked at
        (30, 600_000, 5),  # 20,000 a second: five seconds are 100,000
        (5, 500_000, 5),  # more than that: five seconds all the same
        (5, 50_000, 10),  # 10,000 a second
        (5, 0, 30),
    ],
)
def test_how_far_the_view_looks_back(span_s: int, events: int, want_s: int) -> None:
    """At most 100,000 events, at most half a minute, at least five seconds."""
    assert affordable_ns(span_s * SECOND, events) == want_s * SECOND


def test_the_panel() -> None:
    """Each figure that is known has its line; the last steps follow."""
    rows = [row.strip("│╭╮╰╯─ ") for row in drawn(VIEW).splitlines()]
    want = [
        "vllm-harness knee",
        "step 3      48 users (bisect), measuring",
        "p95 TTFT    412 ms (398 to 432)",
        "throughput  1,580 tokens/s",
        "requests    37 ended, 2 failed",
        "server      40 running, 8 waiting",
        "knee        between 32 and 64",
        "users    decision    why",
        "1    good        0 of 14 over ttft_p95=500ms",
        "64    bad         9 of 9 over itl_p95=50ms",
        "40 s left at most",
    ]
    assert rows == want


@pytest.mark.parametrize(
    ("said", "want"),
    [
        ("[bold]loud[/bold]", "[bold]loud[/bold]"),
        ("[/] closes nothing", "[/] closes nothing"),  # as markup: an exception
        ("[red", "[red"),
        (":boom: \\[x]", ":boom: \\[x]"),
        ("two\nlines\u2028three", "two lines three"),
        ("\x1b[31mred\x1b[0m\x07", "[31mred [0m"),  # an escape sequence is not passed on
    ],
)
def test_what_others_say_is_text(said: str, want: str) -> None:
    """A model's name, a decision and a reason are drawn as they are, on a line."""
    view = replace(VIEW, title=said, server=said, past=[("8", "fail", said), ("9", said, "")])
    shown = drawn(view)
    assert shown.count(want) == 4
    assert ("\x1b" in shown, len(shown.splitlines())) == (False, 11)
    out = StringIO()
    with Live(out) as live:
        live.show(view)
    assert out.getvalue().splitlines()[0] == f"8 users: bad; {want}"


@pytest.mark.parametrize(
    ("view", "want"),
    [
        (LiveView(), "waiting for the first step"),
        (
            LiveView(step=1, users=1, phase="ramping", latencies={"TTFT": "", "ITL": ""}),
            "step 1, 1 user, ramping",
        ),
        (
            VIEW,
            "step 3, 48 users, measuring: p95 TTFT 412 ms (398 to 432), requests: " + REST,
        ),
    ],
)
def test_one_line_where_there_is_no_terminal(view: LiveView, want: str) -> None:
    """What is not known yet is left out."""
    assert line(view) == want


def record(number: int, done_s: int, outcome: Outcome = Outcome.ok) -> RequestRecord:
    """A request of a second that brought one token at its end."""
    done = done_s * SECOND
    return RequestRecord(
        worker=0, number=number, user=0, sent_ns=done - SECOND, done_ns=done, outcome=outcome,
        at_ns=array("q", [done]), not_before_ns=array("q", [done]), tokens=array("q", [1]),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("since_s", "until_s", "want"),
    [
        (0, 200, "5 ended, 2 failed"),
        (10, 100, "3 ended, 1 failed"),  # at 10, 70 (failed) and 100
        (11, 69, "0 ended"),
        (101, 200, "1 ended, 1 failed"),
    ],
)
def test_requests_counted(since_s: int, until_s: int, want: str) -> None:
    """What ended in a time, both ends counted, and how much of it failed."""
    ledger = Ledger()
    bad = {70: Outcome.timeout, 130: Outcome.status}
    for number, at in enumerate((5, 10, 70, 100, 130)):
        ledger.put([record(number, at, bad.get(at, Outcome.ok))])
    ledger.put([record(9, 50, Outcome.open)])  # under way
    assert counts(*ledger.ended(since_s * SECOND, until_s * SECOND)) == want


def test_looking_forgets_nothing() -> None:
    """A view asks for the last seconds only; the judge of a long step still sees all of it."""
    ledger = Ledger()
    for number in range(300):  # one ends each second, and the view looks at the last 30
        now = (number + 1) * SECOND
        ledger.put([record(number, number + 1)])
        seen = ledger.look(now - 30 * SECOND, now).table
    assert (len(seen), len(ledger.table(0, now).table)) == (31, 300)
