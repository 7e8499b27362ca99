"""The split of mean TTFT against what each simulated request really spent where."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
from measure_tables import record
from split_cases import NEAR, SEEDS
from stored_statistics import stored

from harness.core.typed_json import to_json
from harness.diagnosis.cohort import choose_scrapes
from harness.diagnosis.ttft_split import PARTS, ttft_split
from harness.metrics.level_figures import TtftSplit
from harness.records.histogram import Histogram
from harness.records.record_table import RecordTable
from harness.records.request_record import Outcome
from harness.records.samples import ServerSample

S = 10**9
MS = 10**6


def test_the_truth_lies_in_the_bound() -> None:
    """Windows cut out of a run in full flow: every true mean, in every seed, as it is stored."""
    answers = stored("splits")
    assert len(answers) == SEEDS
    outside = {seed: answer["outside"] for seed, answer in answers.items()}
    assert {seed: wrong for seed, wrong in outside.items() if wrong} == {}
    assert sum(answer["windows"] for answer in answers.values()) > 2 * SEEDS


def test_it_is_exact_where_a_run_begins_and_ends_empty() -> None:
    """Nothing in flight at either edge: each mean is the true one, and the parts add up."""
    inexact = {seed: answer["inexact"] for seed, answer in stored("splits").items()}
    assert {seed: wrong for seed, wrong in inexact.items() if wrong} == {}


def request(number: int, sent_ms: int, first_ms: int, done_ms: int, why: str = "ok") -> object:
    """A request that says its instants; `first_ms` -1: no token came."""
    tokens = [first_ms, done_ms] if first_ms >= 0 else []
    return record(number, sent_ms, tokens, done_ms, Outcome(why))


def sample(
    at_ms: int, ttft: tuple[int, float], ends: tuple[int, float, float], busy: int = 0
) -> ServerSample:
    """A scrape: (count, sum in s) of TTFT, (count, queue, prefill) of what has ended."""
    return ServerSample(
        at_ms * MS,
        running=busy,
        waiting=0,
        took_ns=0,
        ttft_count=ttft[0],
        ttft_sum_s=ttft[1],
        queue_count=ends[0],
        queue_sum_s=ends[1],
        prefill_count=ends[0],
        prefill_sum_s=ends[2],
    )


def test_prefill_apart() -> None:
    """The prefill server's time comes before that of the servers that decode; the parts add up."""
    before = replace(EMPTY, prefill=sample(500, (2, 0.1), (2, 0.0, 0.1)))
    # 60 ms of each request were the prefill server's, 20 of them in its queue
    after = replace(FULL, prefill=sample(8000, (5, 0.28), (5, 0.06, 0.2)))
    split = ttft_split(RecordTable.from_records(THREE), [before, after], BOTH)
    parts = [split.prefill_server_ms, split.queue_ms, split.prefill_ms, split.rest_ms]
    assert parts == [60, 200, 50, 40]
    assert split.prefill_server_queue_ms == 20
    assert split.residual_ms == -50
    assert split.exact


# three requests of 200, 300 and 400 ms to the first token; the server saw 10 ms less of each
THREE = [request(0, 1000, 1200, 2000), request(1, 2000, 2300, 3000), request(2, 4200, 4600, 7000)]
EMPTY = sample(500, (5, 1.0), (5, 0.5, 0.25))
FULL = sample(8000, (8, 1.87), (8, 1.1, 0.4))
MIDDLE = sample(5000, (8, 1.87), (7, 0.9, 0.35), busy=1)
BOTH = (500 * MS, 8000 * MS)
CASES = {
    # n = 3; (1.87 - 1.0) / 3 = 290 ms; queue 600 / 3, prefill 150 / 3; client 900 / 3
    "all of three": (
        THREE,
        [EMPTY, FULL],
        BOTH,
        True,
        {"client": 300, "ttft": 290, "queue": 200, "prefill": 50, "rest": 40, "residual": 10},
    ),
    # the third has its first token and no end: its queue and prefill may be 0 to 400 ms in all
    "one under way": (
        THREE,
        [EMPTY, MIDDLE],
        (500 * MS, 5000 * MS),
        False,
        {
            "client": 300,
            "ttft": 290,
            "queue": (400 / 3, 800 / 3),
            "prefill": (100 / 3, 500 / 3),
            "rest": (0, 370 / 3),
            "residual": 10,
        },
    ),
    # it ends before 8 s: a later scrape says that its queue was at most 200, its prefill 50 ms
    "and seen to end": (
        THREE,
        [EMPTY, MIDDLE, FULL],
        (500 * MS, 5000 * MS),
        False,
        {
            "client": 300,
            "ttft": 290,
            "queue": (400 / 3, 200),
            "prefill": (100 / 3, 50),
            "rest": (40, 370 / 3),
            "residual": 10,
        },
    ),
    "refused ones count on neither side": (
        [*THREE, request(3, 3000, -1, 3001, "status")],
        [EMPTY, FULL],
        BOTH,
        True,
        {"client": 300, "queue": 200},
    ),
    # cut off in the middle: whether the server counted its queue and prefill is not known
    "one was cut off": (
        [*THREE[:2], request(2, 4200, 4600, 7000, "truncated")],
        [EMPTY, sample(8000, (8, 1.87), (7, 0.9, 0.35))],
        BOTH,
        False,
        {"client": 300, "ttft": 290, "queue": (400 / 3, 800 / 3), "residual": 10},
    ),
    "somebody else's request is counted": (
        THREE,
        [EMPTY, sample(8000, (9, 1.9), (9, 1.2, 0.4))],
        BOTH,
        False,
        {"client": 300, "ttft": None, "queue": None, "rest": None, "residual": None},
    ),
    "the server started anew": (
        THREE,
        [EMPTY, sample(8000, (3, 0.87), (3, 0.6, 0.15))],
        BOTH,
        False,
        {"client": 300, "ttft": None, "queue": None, "rest": None},
    ),
    "no prefill is said": (
        THREE,
        [replace(s, prefill_count=nan, prefill_sum_s=nan) for s in (EMPTY, FULL)],
        BOTH,
        False,
        {"client": 300, "ttft": 290, "queue": 200, "prefill": None, "rest": None, "residual": 10},
    ),
    "the server's clock is ahead": (
        THREE,
        [EMPTY, sample(8000, (8, 1.99), (8, 1.1, 0.4))],
        BOTH,
        True,
        {"residual": -30},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_three_requests(case: str) -> None:
    """By hand: single figures where the bound is a point, (low, high) where it is not."""
    records, samples, window, exact, want = CASES[case]
    got = to_json(ttft_split(RecordTable.from_records(records), samples, window, window))
    assert got["exact"] is exact
    for part, figure in want.items():
        pair = [figure, figure] if isinstance(figure, int) else figure and list(figure)
        bound = got[f"{part}_ms_bound"]
        assert bound == (pair and pytest.approx(pair, abs=NEAR)), part


def test_no_scrapes_no_split() -> None:
    """One scrape is no difference."""
    assert ttft_split(RecordTable.from_records(THREE), [EMPTY], BOTH) == TtftSplit()


def test_quantiles_are_buckets() -> None:
    """Beside each other, each the bucket that holds it; "inf" in the last, None of too few."""
    bounds = (0.3, 0.5, inf)
    first = replace(EMPTY, histograms={k: Histogram(bounds, (0.0,) * 3, 0.0) for k in PARTS[:2]})
    after = {"queue": (150.0, 190.0, 240.0), "prefill": (100.0,) * 3}
    last = replace(FULL, histograms={k: Histogram(bounds, v, 9.0) for k, v in after.items()})
    got = to_json(ttft_split(RecordTable.from_records(THREE), [first, last], BOTH))
    assert got["queue_p50_ms_bucket"] == [0.0, 300.0]
    assert got["queue_p95_ms_bucket"] == [500.0, "inf"]
    assert got["prefill_p50_ms_bucket"] == [0.0, 300.0]
    assert got["prefill_p95_ms_bucket"] is None


EDGES = {
    "empty ones around it": ((1100, 6600), [0, 500, 1500, 2500, 8000, 9000], (500, 8000)),
    "no empty one after it": ((1100, 6600), [500, 1500, 2500, 6500], (1500, 6500)),
    "empty ones in its own quarters": ((2600, 8600), [2700, 3500, 5000, 8000, 8500], (3500, 8500)),
    "one scrape inside": ((1100, 6600), [2500], None),
}


@pytest.mark.parametrize("case", EDGES)
def test_between_which_scrapes(case: str) -> None:
    """Empty on both sides, nearest to the window; else the first and last inside it."""
    window, at, want = EDGES[case]
    samples = [replace(EMPTY, at_ns=t * MS) for t in at]
    table = RecordTable.from_records(THREE)
    found = choose_scrapes(table, samples, (window[0] * MS, window[1] * MS))
    assert (found and tuple(s.at_ns // MS for s in found)) == want
