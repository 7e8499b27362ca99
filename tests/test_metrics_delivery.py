"""What was asked for against what came."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from measure_tables import record, table

from harness.core.states import Decision
from harness.core.typed_json import from_json, to_json
from harness.metrics.delivery import Delivery, delivery
from harness.metrics.result import Level, Result
from harness.records.request_record import Outcome
from harness.report.delivered import delivery_sentences
from harness.report.report_data import ReportData
from harness.report.small_print import COUNTED_AT_END, NOT_COUNTED, counting_notes
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.records.request_record import RequestRecord


def answered(number: int, tokens: int, asked: int = 8, **more: Any) -> RequestRecord:
    """An answer of so many tokens, as the server counts them, sent in the second of its number."""
    sent_ms = 1000 * number
    made = record(number, sent_ms, [sent_ms + 10])
    return replace(made, **{"planned_tokens": asked, "output_tokens": tokens} | more)


def compared(*records: RequestRecord, exact: bool = True, finish: str = "stop") -> Delivery:
    """Over all of them."""
    return delivery(table(*records), [finish] * len(records), 0, 60 * SECOND, exact=exact)


FEWER = "answers had fewer tokens than asked for"
MEAN = "where 8 were asked for, on average; finish_reason stop"
TAKES_NONE = "the server does not take ignore_eos and min_tokens"


@pytest.mark.parametrize(
    ("tokens", "exact", "want"),
    [
        ([8, 8], True, []),
        ([4, 8], True, [f"1 of 2 {FEWER} (6 {MEAN} 1)"]),
        ([4, 4], False, [f"2 of 2 {FEWER} (4 {MEAN} 2; {TAKES_NONE})"]),
        ([24, 24], True, [f"2 of 2 answers had more tokens than asked for (24 {MEAN} 2)"]),
        ([-1, -1], True, []),  # it does not count, and an event may have several
    ],
)
def test_answers_of_another_length(tokens: list[int], exact: bool, want: list[str]) -> None:
    """How many, by how much, and why they ended."""
    answers = [answered(number, n) for number, n in enumerate(tokens)]
    assert compared(*answers, exact=exact).sentences == want


def test_what_is_compared() -> None:
    """Requests of the window that ended well and whose tokens the server counts."""
    seen = table(
        answered(0, 8, finish_reason="length"),
        answered(1, 3),
        answered(2, 9),
        answered(3, -1),
        answered(4, 2, outcome=Outcome.status),
        answered(70, 2),  # of the next level
    )
    finishes = ["length", "stop", "eos", "", "", ""]
    got = delivery(seen, finishes, 0, 60 * SECOND, exact=True)
    assert got == Delivery(
        n=3,
        exact=True,
        shorter=1,
        longer=1,
        asked_tokens=8,
        came_tokens=6.667,
        finishes={"stop": 1, "eos": 1},
    )
    assert from_json(Delivery, to_json(got)) == got


@pytest.mark.parametrize(
    ("asked", "came", "differs"),
    [(16, 30, False), (16, 40, True), (1000, 1090, False), (1000, 1200, True), (1000, 500, True),
     (-1, 500, False), (1000, -1, False)],
)  # fmt: skip
def test_prompts_other_than_planned(asked: int, came: int, differs: bool) -> None:
    """A calibration is off by some percent, a template adds some tokens; no more than that."""
    got = compared(answered(0, 8, planned_prompt=asked, prompt_tokens=came))
    begins = f"prompts had {came:,} tokens where {asked:,} were planned, on average over 1, as the"
    if differs:
        [said_of_it] = got.sentences
        assert said_of_it.startswith(begins)
    else:
        assert got.sentences == []


def said(*levels: Level) -> list[str]:
    """By the report."""
    run = SimpleNamespace(info={})
    result = Result(levels=levels)
    return delivery_sentences(ReportData(cast("Any", run), result))


def test_the_report_says_it_of_the_level_that_differs_most() -> None:
    """Of invalid levels, too; one answer of a thousand is left to result.json."""
    few = Delivery(n=1000, exact=True, shorter=1, asked_tokens=8, came_tokens=7.99)
    some = replace(few, shorter=20)
    most = replace(few, shorter=0, longer=500, came_tokens=12.0)
    assert said(Level(0, 4, delivery=few)) == []
    levels = [
        Level(0, 4, delivery=few),
        Level(1, 8, delivery=some),
        Level(2, 16, delivery=most, decision=Decision.invalid),
    ]
    what = "500 of 1,000 answers had more tokens than asked for"
    means = "12 where 8 were asked for, on average"
    others = "Others differ too: 1 more of 3 levels."
    assert said(*levels) == [f"At 16 concurrent requests, {what} ({means}). {others}"]


@pytest.mark.parametrize(
    ("each", "last", "want"),
    [(True, True, []), (False, True, [COUNTED_AT_END]), (False, False, [NOT_COUNTED])],
)
def test_how_tokens_were_counted(each: bool, last: bool, want: list[str]) -> None:
    """Where not each event says how many tokens it has, the small print does."""
    assert counting_notes({"continuous_usage": each, "final_usage": last}) == want
    assert counting_notes({}) == []
