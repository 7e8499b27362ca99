"""The live view: what servers say is text, never markup; counts; looking forgets nothing."""

from __future__ import annotations

import re
from array import array
from dataclasses import replace
from io import StringIO
from math import inf, nan

import pytest
from measure_tables import evidence
from rich.console import Console

from harness.cli.terminal import (
    LevelRow,
    LiveTerminal,
    TerminalPanel,
    affordable_ns,
    progress_line,
    progress_panel,
    request_counts,
)
from harness.core.load import Users
from harness.core.states import Decision, Purpose
from harness.metrics import ledger as ledgers
from harness.metrics.ledger import Ledger
from harness.metrics.numbers import Quantity
from harness.metrics.result import Level
from harness.metrics.slo import Slo
from harness.records.request_record import Outcome, RequestRecord
from harness.search.judge import Judgement
from harness.search.knee_estimate import bracket_users
from harness.search.level_state import HeldLevel
from harness.search.level_words import (
    PASSING_SO_FAR,
    bracket_text,
    headline_so_far,
    outlook,
    phase_text,
    purpose_text,
    reported_result_text,
    result_text,
)
from harness.search.next_level import SearchPlan
from harness.units import SECOND

ONE = LevelRow(
    1,
    Quantity(10.9, 10.7),
    Quantity(10.33, 10.28, 10.47),
    Quantity(99.7),
    "14",
    PASSING_SO_FAR,
    "0 of 9",
)
MANY = LevelRow(
    64,
    Quantity(1035, 1011, 1043),
    Quantity(inf, 46, inf),
    Quantity(1561),
    "154, 9 failed",
    Decision.failed,
    "9 of 9",
)
FOUR = LevelRow(4, Quantity(), Quantity(), Quantity(0), "0", Decision.held, "judged at the end")
EIGHT = LevelRow(
    8,
    Quantity(499.7, 470, 530, limit=500),
    Quantity(12.0, 11.1),
    Quantity(388),
    "40",
    Decision.inconclusive,
    "late",
)
ROWS = [ONE, MANY, FOUR, EIGHT]
HEAD = " users           p95 TTFT, ms            p95 ITL, ms  tokens/s  requests  result"
TABLE = [
    "     1   10.9 (at least 10.7) 10.33 (10.28 to 10.47)      99.7        14  passing so far",
    "    64 1,035 (1,011 to 1,043)    inf (at least 46.0)     1,561 154, 9 failed  fail: 9 of 9",
    "     4                      –                      –      0.00         0  measured",  # noqa: RUF001
    "     8     499.7 (470 to 530)   12.0 (at least 11.1)       388        40  inconclusive: late",
]
LEFT = "37 ended, 2 failed, 20 s elapsed, at most 1 min left"
VIEW = TerminalPanel(
    "vllm-harness knee",
    3,
    "48 users",
    "bisecting",
    "measuring",
    0.25,
    "20 s elapsed, at most 1 min left",
    {"TTFT": "412 ms (398 to 432)", "ITL": ""},
    "1,580 tokens/s",
    "37 ended, 2 failed",
    "40 running, 8 waiting",
    "holds 32, fails at 64, narrowing",
    ROWS[:2],
)


def drawn(view: TerminalPanel) -> str:
    """The panel on a terminal of 100 columns that knows colours."""
    out = StringIO()
    Console(file=out, width=100, color_system=None, force_terminal=True).print(progress_panel(view))
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
    """Each figure that is known has its line; the bar is a quarter full."""
    bar = 8 * chr(0x2501) + 24 * " "
    rows = [row.strip("│╭╮╰╯─ ") for row in drawn(VIEW).splitlines()]
    want = [
        "vllm-harness knee",
        "level 3     48 users (bisecting), measuring",
        "p95 TTFT    412 ms (398 to 432)",
        "throughput  1,580 tokens/s",
        "requests    37 ended, 2 failed",
        "server      40 running, 8 waiting",
        "knee        holds 32, fails at 64, narrowing",
        f"progress    {bar}  20 s elapsed, at most 1 min left",
        "",
    ]
    assert rows == want


def test_the_rows() -> None:
    """Figures under their heads; on the way up a level need not be decided."""
    narrow = "     1   10.9 (at least 10.7)       10.33      99.7        14  passing so far"
    assert [line for row in ROWS for line in row.lines()] == TABLE
    assert ONE.lines(80, narrow=True) == [narrow]


LATE = "two arrivals shared a read, or were read late; try --processes 4, or fewer users"


@pytest.mark.parametrize(
    ("row", "width", "want"),
    [
        (replace(EIGHT, reason=LATE), 0, [f"{TABLE[3].removesuffix('late')}{LATE}"]),
        (
            replace(EIGHT, reason=LATE),
            100,
            [TABLE[3].removesuffix(": late"), f"        {LATE}"],
        ),
        (
            replace(EIGHT, reason=LATE),
            64,
            [
                "     8     499.7 (470 to 530)        12.0       388        40",
                "        inconclusive: two arrivals shared a read, or were read",
                "        late; try --processes 4, or fewer users",
            ],
        ),
        (
            replace(ONE, running="2 requests still running"),
            0,
            [f"{TABLE[0]}: 2 requests still running"],
        ),
        (
            replace(ONE, whole=False),
            0,
            [TABLE[0].replace(" 10.33 (10.28 to 10.47)", f" {'10.33 (last 30 s)':>22}")],
        ),
    ],
)
def test_a_reason_is_never_cut_off(row: LevelRow, width: int, want: list[str]) -> None:
    """It goes on below the row where a terminal is too narrow; doubts about figures are said."""
    assert row.lines(width, narrow=0 < width < 96) == want


@pytest.mark.parametrize(
    ("purpose", "users", "want"),
    [
        (Purpose.repeat, 8, "repeating a level"),
        (Purpose.repeat, 9, "near the knee"),  # an end of the bracket that was never held
        (Purpose.bisect, 9, "bisecting"),
        (Purpose.hold, 8, "confirming"),
    ],
)
def test_why_a_level_is_held(purpose: Purpose, users: int, want: str) -> None:
    """Only a level that was held before is repeated; a search that is over confirms its answer."""
    assert purpose_text(purpose, Users(users), [Users(8)]) == want


def test_a_level_of_a_run_is_given() -> None:
    """Where nothing is searched nothing is confirmed."""
    assert purpose_text(Purpose.hold, Users(8), [], searches=False) == "given"


TTFT = Slo.parse("ttft_p95=500ms")


@pytest.mark.parametrize(
    ("purpose", "decision", "over", "want"),
    [
        (Purpose.up, Decision.inconclusive, 0.0, PASSING_SO_FAR),
        (Purpose.up, Decision.inconclusive, 0.05, PASSING_SO_FAR),  # just what is allowed
        (Purpose.up, Decision.inconclusive, 0.06, "inconclusive"),
        (Purpose.up, Decision.inconclusive, nan, "inconclusive"),  # no first token came
        (Purpose.up, Decision.passed, 0.0, "pass"),
        (Purpose.repeat, Decision.inconclusive, 0.0, "inconclusive"),
        (Purpose.up, Decision.invalid, 0.0, "invalid"),
        (Purpose.hold, Decision.held, 0.0, "measured"),
    ],
)
def test_a_report_has_the_words_of_the_run(
    purpose: Purpose, decision: Decision, over: float, want: str
) -> None:
    """The row of a level says the same in the terminal, on the page and in the report."""
    level = Level(0, 8, purpose, decision, over_share={TTFT.name: over})
    assert reported_result_text(level, (TTFT,)) == want


CLIMB = "Next: a higher level unless this one fails, then a "


@pytest.mark.parametrize(
    ("purpose", "users", "bracket", "headline", "next_step"),
    [
        (Purpose.up, 8, (None, None), "No level is decided yet.", f"{CLIMB}lower level."),
        (
            Purpose.up,
            64,
            (16, None),
            "Holds at least 16 concurrent requests so far.",
            f"{CLIMB}level between 16 and 64.",
        ),
        (
            Purpose.up,
            512,
            (None, None),
            "No level is decided yet.",
            "This is the highest level. If it fails, next: a lower level.",
        ),
        (
            Purpose.bisect,
            38,
            (37, 40),
            "Between 37 and 40 concurrent requests so far.",
            "Next: levels between 37 and 40, until they are 5% apart or the budget is spent.",
        ),
        (
            Purpose.bisect,
            4,
            (None, 8),
            "Fewer than 8 concurrent requests so far.",
            "Next: levels below 8, until one passes.",
        ),
        (
            Purpose.repeat,
            4,
            (None, None),
            "No level is decided yet.",
            "Next: levels nearby, until one passes and one fails.",
        ),
        (
            Purpose.hold,
            37,
            (37, 40),
            "Between 37 and 40 concurrent requests so far.",
            "The search is over: the level that it promises is held once more.",
        ),
    ],
)
def test_a_search_tells_where_it_is(
    purpose: Purpose,
    users: int,
    bracket: tuple[int | None, int | None],
    headline: str,
    next_step: str,
) -> None:
    """What it has shown is the headline of the page, and below it what comes next."""
    plan = SearchPlan((TTFT,))
    assert headline_so_far(plan.unit, *bracket) == headline
    assert outlook(plan, purpose, Users(users), *bracket) == next_step


def test_a_power_knee_has_no_bracket() -> None:
    """Without an SLO no level passes or fails."""
    want = "Next: other levels, to see where throughput divided by latency peaks."
    assert outlook(SearchPlan(()), Purpose.up, Users(8), None, None) == want


@pytest.mark.parametrize(
    ("levels", "want"),
    [
        ([], [None, None]),
        ([(8, 400, 0)], [8, None]),
        ([(8, 400, 0), (16, 400, 400)], [8, 16]),
        ([(8, 400, 0), (12, 40, 1), (16, 400, 400)], [8, 16]),  # 12 is inconclusive
        ([(12, 40, 1), (16, 400, 400)], [None, 16]),
    ],
)
def test_the_knee_lies_where_it_was_shown(
    levels: list[tuple[int, int, int]], want: list[int | None]
) -> None:
    """An end that a fit would take, but that is inconclusive, is not said to have passed."""
    plan = SearchPlan(slos=(Slo.parse("ttft_p95=500ms"),), max_users=64)
    held = [held_level(users, n, over) for users, n, over in levels]
    assert bracket_users(plan, held) == want


def held_level(users: int, n: int, over: int) -> HeldLevel:
    """A level with `over` of `n` observations over the limit."""
    seen = evidence(users, (n, over))
    return HeldLevel(seen.window, seen, Judgement(Decision.inconclusive, "", leans_to_fail=False))


class Terminal(StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        """As rich asks."""
        return True


@pytest.mark.parametrize("stream", [StringIO(), Terminal()])
def test_rows_stay(stream: StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ended level once, above the panel; in a pipe the same rows, with the time of day."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with LiveTerminal(stream) as live:
        live.show(replace(VIEW, past=[]))
        live.show(replace(VIEW, past=ROWS[:1]))
        live.show(replace(VIEW, past=ROWS[:2]))
        live.over(replace(VIEW, past=ROWS))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", text)]
    if not stream.isatty():
        assert any(lines)
        for line in filter(None, lines):
            assert re.match(r"\d\d:\d\d:\d\d ", line)
        lines = [line[9:] for line in lines]
    rows = [HEAD, *TABLE]
    assert [line for line in lines if line in rows] == rows
    assert "Computing the results." in lines


@pytest.mark.parametrize(
    ("purpose", "decision", "leans", "invalid", "want"),
    [
        (Purpose.up, Decision.inconclusive, False, "", PASSING_SO_FAR),
        (Purpose.up, Decision.inconclusive, True, "", "inconclusive"),
        (Purpose.up, Decision.passed, False, "", "pass"),
        (Purpose.up, Decision.failed, True, "", "fail"),
        (Purpose.up, Decision.inconclusive, False, "tokens are missing", "invalid"),
        (Purpose.repeat, Decision.inconclusive, False, "", "inconclusive"),
        (Purpose.hold, Decision.held, False, "", "held"),
    ],
)
def test_what_a_row_says(
    purpose: Purpose, decision: Decision, leans: bool, invalid: str, want: str
) -> None:
    """A level of the way up that leans to pass is passing so far, whatever is decided."""
    seen = evidence(8, (40, 1))
    window = replace(seen.window, purpose=purpose)
    judged = Judgement(decision, "", leans_to_fail=leans)
    held = HeldLevel(window, replace(seen, window=window), judged, invalid)
    assert result_text(held) == want


@pytest.mark.parametrize(
    ("name", "running", "want"),
    [
        ("ramping", 2, "warming up, 2 of them started"),
        ("ramping", 8, "warming up"),
        ("ramping", 12, "warming up"),  # the level before had more
        ("settling", 8, "warming up"),
        ("measuring", 8, "measuring"),
        ("draining", 3, "draining"),
    ],
)
def test_a_phase_in_words(name: str, running: int, want: str) -> None:
    """Until the window is open the level warms up."""
    assert phase_text(name, running, 8) == want


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
    row = replace(MANY, reason=said)
    view = replace(VIEW, title=said, server=said, past=[row])
    shown = drawn(view)
    assert shown.count(want) == 2
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 9
    out = StringIO()
    with LiveTerminal(out) as live:
        live.show(view)
    assert out.getvalue().splitlines()[1].endswith(f"  fail: {want}")


@pytest.mark.parametrize(
    ("view", "want"),
    [
        (TerminalPanel(), "waiting for the first level"),
        (
            TerminalPanel(
                level=1, load="1 user", phase="warming up", time="2 s elapsed, at least 10 s left"
            ),
            "level 1, 1 user, warming up: 2 s elapsed, at least 10 s left",
        ),
        (
            VIEW,
            (
                f"level 3, 48 users, measuring: p95 TTFT 412 ms (398 to 432), {LEFT}; "
                "holds 32, fails at 64, narrowing"
            ),
        ),
    ],
)
def test_one_line_where_there_is_no_terminal(view: TerminalPanel, want: str) -> None:
    """What is not known yet is left out."""
    assert progress_line(view) == want


@pytest.mark.parametrize(
    ("ends", "purpose", "want"),
    [
        ((None, None), None, ""),
        ((None, 1630), Purpose.up, "fails at 1,630, no level passed yet"),
        ((112, None), Purpose.repeat, "holds 112, no level failed yet"),
        ((112, 163), Purpose.repeat, "holds 112, fails at 163, narrowing"),
        ((1.5, 2.25), None, "holds 1.5, fails at 2.25, narrowing"),
        ((112, 163), Purpose.cause, "holds 112, fails at 163, the search is over"),
        ((112, 163), Purpose.hold, "holds 112, fails at 163, the search is over"),
    ],
)
def test_what_a_search_has_shown_so_far(
    ends: tuple[float | None, float | None], purpose: Purpose | None, want: str
) -> None:
    """Each end as soon as it is shown."""
    holds, fails_at = ends
    assert bracket_text(holds, fails_at, purpose) == want


def record(number: int, done_s: int, outcome: Outcome = Outcome.ok) -> RequestRecord:
    """A request of a second that brought one token at its end."""
    done = done_s * SECOND
    return RequestRecord(
        worker=0,
        number=number,
        user=0,
        sent_ns=done - SECOND,
        done_ns=done,
        outcome=outcome,
        at_ns=array("q", [done]),
        not_before_ns=array("q", [done]),
        tokens=array("q", [1]),
    )


@pytest.mark.parametrize(
    ("since_s", "until_s", "want"),
    [
        (0, 200, "5 ended, 2 failed"),
        (10, 100, "3 ended, 1 failed"),  # at 10, 70 (failed) and 100
        (11, 69, "0 ended"),
        (101, 200, "1 ended, 1 failed"),
    ],
)
@pytest.mark.parametrize("packed", [1, 2, 8])
def test_requests_counted(
    since_s: int, until_s: int, want: str, packed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ended in a time, both ends counted, and how much of it failed; so many in a table."""
    monkeypatch.setattr(ledgers, "PACK_REQUESTS", packed)
    ledger = Ledger()
    bad = {70: Outcome.timeout, 130: Outcome.status}
    for number, done_s in enumerate((5, 10, 70, 100, 130)):
        outcome = bad.get(done_s, Outcome.ok)
        ledger.put([record(number, done_s, outcome)])
    ledger.put([record(9, 50, Outcome.open)])  # under way
    ended, failed = ledger.ended(since_s * SECOND, until_s * SECOND)
    assert request_counts(ended, failed) == want


def test_looking_forgets_nothing() -> None:
    """A view asks for the last seconds only; the judge of a long step still sees all of it."""
    ledger = Ledger()
    for number in range(300):  # one ends each second, and the view looks at the last 30
        now = (number + 1) * SECOND
        ledger.put([record(number, number + 1)])
        seen = ledger.look(now - 30 * SECOND, now).table
    assert len(seen) == 31
    assert len(ledger.table(0, now).table) == 300
