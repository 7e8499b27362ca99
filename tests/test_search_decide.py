"""Met, missed or inconclusive: how often wrongly, and from how many requests on."""

from math import ceil, comb
from statistics import NormalDist

import numpy as np
import pytest
from level_seeds import SEEDS, levels
from measure_tables import SECOND, record, table, window
from simulated_decisions import KINDS, seeds
from stored_statistics import stored

from harness.metrics.evidence import EvidenceCounter, gather_evidence
from harness.metrics.latency_figures import MAX_LIFETIMES_PER_BLOCK
from harness.metrics.scan import scan
from harness.metrics.slo import Slo
from harness.metrics.statistics import (
    MAX_BLOCKS,
    binomial_tail,
    block_count,
    design_effects,
    student_p_value,
    sum_groups,
    tail_of,
)
from harness.metrics.window_summary import WindowTokens, window_summary
from harness.records.request_record import Outcome
from harness.search.decide import (
    ALPHA,
    ERROR_RATE,
    ERRORS_WEIGHT,
    WAVES_PER_LIFETIME,
    Verdict,
    count_in_order,
    count_slices,
    counts_of,
    decide,
    holm,
    p_met,
    p_missed,
)

WRONG = 15  # of 200: what a true 5% gives in 95% of such tests
TTFT, ITL, TPOT = (Slo.parse(t) for t in ("ttft_p95=60ms", "itl_p95=30ms", "tpot_p95=30ms"))
MET = Verdict.met
MISSED = Verdict.missed
OPEN = Verdict.inconclusive


@pytest.mark.parametrize(("kind", "users"), KINDS)
def test_wrong_verdicts(kind, users):
    """Wrongly met and wrongly missed in at most 15 of 200 seeds, in every cell."""
    wrong = stored("decisions")[kind, users]
    too_often = {cell: count for cell, count in wrong.items() if count > WRONG}
    assert too_often == {}
    assert max(wrong.values()) > 0


@pytest.mark.parametrize(
    ("kind", "users", "n"),
    [
        *(("independent", users, 200) for users in (1, 4, 16, 32, 64)),
        *(("fate", users, 200) for users in (1, 2, 3, 4)),
        *((kind, users, 60 * users) for kind in ("fate", "effect") for users in (8, 20, 64)),
    ],
)
def test_four_times_the_allowed_share_is_missed(kind, users, n):
    """In 90% of the seeds, with a p95 and the failures that are tested beside it."""
    p = p_missed(seeds(kind, users, n, 0.05, [4]))
    assert (p <= ALPHA / (1 + ERRORS_WEIGHT)).sum() >= 0.9 * SEEDS


@pytest.mark.parametrize(
    ("allowed", "users", "enough"),
    [(0.05, 1, 110), (0.05, 4, 130), (0.05, 32, 320), (0.05, 64, 540),
     (0.01, 1, 480), (0.01, 4, 480), (0.01, 32, 1500), (0.01, 64, 2700)],
)  # fmt: skip
def test_so_many_clean_requests_are_enough(allowed, users, enough):
    """Independent ones: met in 90% of the seeds, and in none with two thirds of them."""
    for n, least, most in ((enough, 0.9 * SEEDS, SEEDS), (enough // 2, 0, 0)):
        sent, took = levels("independent", users, n, 2)
        clean = count_in_order("x", allowed, took > 9, sent, users=users, values=took)
        assert least <= (p_met(clean) <= ALPHA).sum() <= most


@pytest.mark.parametrize("memory", [0.0, 0.9, 0.99])
@pytest.mark.parametrize("allowed", [0.05, 0.01])
def test_gaps_of_whole_batches(memory, allowed):
    """Exactly the share allowed, of gaps that 8 users share; 100 engine steps in a lifetime."""
    wrong = []
    for lifetimes in (3, 8, 20, 60):
        steps = levels("independent", 100, 100 * lifetimes, 4).took
        for i in range(1, steps.shape[1]):
            steps[:, i] = memory * steps[:, i - 1] + (1 - memory**2) ** 0.5 * steps[:, i]
        sizes = np.full(steps.shape[1], 8.0)
        over = steps > NormalDist().inv_cdf(1 - allowed)
        blocks = min(max(lifetimes, 4), MAX_BLOCKS)  # as Judged has them, and as Gaps
        wide = max(int(block_count(lifetimes, MAX_LIFETIMES_PER_BLOCK)), 4)
        above = design_effects(
            sum_groups(sizes, wide), sum_groups(8 * tail_of(steps, 1 - 2 * allowed), wide)
        )
        counts = count_slices(
            "x",
            allowed,
            8 * lifetimes,
            sum_groups(sizes, blocks),
            sum_groups(8 * over, blocks),
            lifetimes=lifetimes,
            together=sizes.sum() / (WAVES_PER_LIFETIME * lifetimes),
            above=above,
        )
        wrong += [int((p <= ALPHA).sum()) for p in (p_met(counts), p_missed(counts))]
    assert 0 < max(wrong) <= WRONG, wrong


@pytest.mark.parametrize(("kind", "users"), [("independent", 4), ("fate", 4), ("serial half", 20)])
def test_a_run_is_wrong_as_seldom_as_a_level(kind, users):
    """Two SLOs and failures at five levels, all with exactly the share allowed."""
    p = []
    for level in range(5):
        sent, took = levels(kind, users, 400, 10 + level)
        for allowed, values in ((0.05, took), (0.01, took[::-1]), (0.01, -took)):
            over = values > NormalDist().inv_cdf(1 - allowed)
            p.append(p_missed(count_in_order("x", allowed, over, sent, users=users)))
    weights = np.array([1, 1, ERRORS_WEIGHT] * 5)
    wrong = [holm(row, weights)[0].any() for row in np.array(p).T]
    assert 0 < sum(wrong) <= WRONG


@pytest.mark.parametrize(
    ("p", "weights", "want"),
    [
        ([0.01, 0.04, 0.03], [1, 1, 1], [True, False, False]),  # 0.05 / 3, then 0.03 > 0.05 / 2
        ([0.01, 0.04, 0.02], [1, 1, 1], [True, True, True]),  # 0.02 <= 0.05 / 2, 0.04 <= 0.05
        ([0.04, 0.004], [1, 0.1], [True, True]),  # 0.004 <= 0.05 x 0.1 / 1.1, then 0.04 <= 0.05
        ([0.046, 0.5], [1, 0.1], [False, False]),  # 0.046 > 0.05 / 1.1
        ([], [], []),
    ],
)
def test_holm(p, weights, want):
    """The least first, at its part of what is left of alpha."""
    rejected, *_ = holm(np.array(p, float), np.array(weights, float))
    assert rejected.tolist() == want


def row(n, over, users, allowed=0.05, slo="x"):
    """N requests, each user's one second after the last, those in `over` over the limit."""
    hits = np.isin(np.arange(n), list(over))
    return count_in_order(slo, allowed, hits, np.arange(n) / users, users=users)


def evenly(n, k):
    """K of n, as far apart as can be."""
    return (np.arange(k) * n // max(k, 1)).tolist()


@pytest.mark.parametrize(
    ("one", "want", "more"),
    [
        (row(19, evenly(19, 4), 4), OPEN, 6),
        (row(1000, evenly(1000, 70), 4), MISSED, None),
        (row(12, range(4, 12), 4, 0.01), MISSED, None),  # all well, then all broken off
        (row(12, [1, 2, 4, 5, 7, 8, 10, 11], 4, 0.01), MISSED, None),
        (row(100, [], 1), MET, None),
        (row(50, [], 1), OPEN, 20),  # 70 in all: 0.95^70 is 0.0276, by Student's t 0.035
        (row(300, evenly(300, 15), 4), OPEN, None),  # exactly the share allowed
        (row(300, evenly(300, 14), 4), OPEN, 15202),  # 1.9^2 x 0.0445 / 0.00333^2 is 14,400
        (row(0, [], 4), OPEN, None),  # no token came
        (row(60, range(60), 64), OPEN, 49),  # 1.82 lifetimes: 0.05^1.82 is 0.0043
    ],
)
def test_decisions(one, want, more):
    """One SLO at one level, nothing failed: the verdict, and how many more would decide."""
    fine = row(max(one.requests, 1), [], 4, 0.01, ERROR_RATE)
    (level,) = decide([[one, fine]])
    (told,) = level.slos
    assert told.verdict == want
    assert told.needs_more == more


@pytest.mark.parametrize(
    ("allowed", "failed", "want"),
    [
        (0.0, [], OPEN),
        (0.0, [7], MISSED),  # none may fail
        (0.01, [7], OPEN),  # that few fail is not asked to be shown
        (0.01, range(40, 60), MISSED),
        (1.0, range(200), OPEN),
    ],
)
def test_how_many_may_fail(allowed, failed, want):
    """Of 200 requests at 4 users, all within the limit of an SLO that does not ask for more."""
    latency = row(200, [], 4)
    errors = row(200, failed, 4, allowed, ERROR_RATE)
    (level,) = decide([[latency, errors]])
    assert level.errors.verdict == want
    assert level.errors.needs_more is None
    assert level.slos[0].verdict is MET


def test_what_is_asked_for_more_decides():
    """The same share over a p95, of as many more; of two thirds of them it does not."""
    for n, k in ((60, 6), (100, 9), (120, 2), (400, 12), (50, 0)):
        latency = row(n, evenly(n, k), 4)
        errors = row(n, [], 4, 0.01, ERROR_RATE)
        (level,) = decide([[latency, errors]])
        more = level.slos[0].needs_more
        few = k < 0.05 * n
        for whole, want in (n + more, MET if few else MISSED), (n + more * 2 // 3, OPEN):
            over = (ceil if few == (want is OPEN) else int)(k * whole / n)
            large = row(whole, evenly(whole, over), 4)
            (level,) = decide([[large, row(whole, [], 4, 0.01, ERROR_RATE)]])
            assert level.slos[0].verdict is want, (n, k, more)


# from records


def request(number, ttft=50.0, gap=20.0, outcome=Outcome.ok, sent=None):
    """Sent each 100 ms, three tokens, the first after `ttft`; a failed one has none."""
    sent = 100.0 * number if sent is None else sent
    if outcome is not Outcome.ok:
        return record(number, sent, [], sent + 10, outcome, planned=3)
    first = sent + ttft
    return record(number, sent, [first, first + gap, first + 2 * gap])


def of(records, slos, users=1, end_s=60, max_errors=0.01):
    """(verdict, over, n) of each SLO and of the failures, sent in 0 to `end_s`."""
    whole = table(*records)
    span = window(users, 0, end_s)
    judged = EvidenceCounter(whole, span, slos)
    scan(whole, [judged])
    gaps = WindowTokens.of(whole, (0, end_s * SECOND)).gaps
    counts = counts_of(whole, span, slos, max_errors, judged=judged, gaps=gaps)
    (level,) = decide([counts])
    return [(one.verdict, one.n_over, one.n) for one in (*level.slos, level.errors)]


@pytest.mark.parametrize(
    ("failures", "p95", "verdict"),
    [
        (0, 50, MET),
        (4, 50, OPEN),  # rank ceil(0.95 x 99) = 95 from 0, of 96 that are finite
        (5, "inf", OPEN),  # of 95; yet 5% may be over
        (6, "inf", OPEN),
        (50, "inf", MISSED),
    ],
)
def test_failures_in_a_hundred_requests(failures, p95, verdict):
    """The p95 that is shown, and the verdict by the share that failed."""
    bad = set(evenly(100, failures))
    rows = []
    for i in range(100):
        outcome = Outcome.status if i in bad else Outcome.ok
        rows.append(request(i, outcome=outcome))
    shown = window_summary(table(*rows), 0, 60 * SECOND)["ttft_ms"]["p95"]
    got, errors = of(rows, (TTFT,))
    assert shown == p95
    assert got == (verdict, failures, 100)
    assert errors[1:] == (failures, 100)


def test_what_is_counted():
    """Sent in the window, at the limit, over it, failed, open: each where it belongs."""
    rows = [
        request(0, ttft=60),  # at the limit
        request(1, ttft=61),
        request(2, outcome=Outcome.timeout),
        record(3, 300, [], 359, Outcome.open),  # may still be in time
        record(4, 400, [], 461, Outcome.open),  # cannot
        record(5, 500, [540], 541),  # one token: no TPOT, no gap
        request(6, gap=31, ttft=40),
        request(7, sent=61_000),
    ]
    assert of(rows, (TTFT, ITL, TPOT), end_s=60) == [
        (OPEN, 3, 6),
        (OPEN, 4, 8),  # two gaps of 0, 1 and 6; of the failed one those of its second and third
        (OPEN, 2, 4),
        (OPEN, 1, 5),
    ]


def test_gaps_of_a_level():
    """500 requests one after another: gaps of 20 ms are met, of 31 missed."""
    for gap, want in ((20, MET), (31, MISSED)):
        rows = [request(i, gap=gap) for i in range(500)]
        over = 1000 if want is MISSED else 0
        assert of(rows, (ITL,))[0] == (want, over, 1000)


# what it is made of


@pytest.mark.parametrize(("n", "p"), [(1, 0.05), (12, 0.01), (60, 0.05), (400, 0.5), (900, 0.99)])
def test_binomial_tails(n, p):
    """As summed up term by term."""
    terms = [comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(n + 1)]
    want = np.cumsum(terms[::-1])[::-1]
    got = binomial_tail(np.arange(n + 1.0), np.full(n + 1, float(n)), p)
    assert got == pytest.approx(want, rel=1e-7, abs=1e-14)


@pytest.mark.parametrize(
    ("z", "df", "want"),
    # printed tables: t of 1, 4 and 23 degrees of freedom with 2.5% (5%) beyond it
    [(12.706, 1, 0.025), (2.776, 4, 0.025), (2.069, 23, 0.025), (-1.714, 23, 0.95), (1.96, 0, 1)],
)
def test_student(z, df, want):
    """A normal deviate is read as Student's."""
    p = 1 - NormalDist().cdf(z) if z < 5 else 2.7e-37
    assert float(student_p_value(np.array(p), df)) == pytest.approx(want, rel=0.01)


def test_counts_may_be_many_at_a_time():
    """Rows of a leading axis are decided as one by one."""
    sent, took = levels("effect", 20, 400, 3)
    many = count_in_order("x", 0.05, took > 1.5, sent, users=20, values=took)
    for i in (0, 7, 199):
        one = count_in_order("x", 0.05, took[i] > 1.5, sent, users=20, values=took[i])
        for test in (p_met, p_missed):
            assert test(many)[i] == pytest.approx(float(test(one)))


@pytest.mark.parametrize(
    ("slow", "failed", "silent", "want"),
    [
        (0, 0, 0, (MET, 0, 200)),
        (30, 0, 0, (MISSED, 30, 200)),  # 25 tokens/s
        (0, 30, 0, (MISSED, 30, 200)),  # 0 tokens/s
        (0, 0, 30, (MISSED, 30, 200)),  # ended well without a token: 0 too
        (5, 3, 2, (OPEN, 10, 200)),  # 5% may be slower
    ],
)
def test_output_speed(slow, failed, silent, want):
    """`tps_p5=30` of 200 requests: three tokens 33.333333 ms apart are 30 tokens/s, just enough."""
    requests = []
    for i in range(200):
        place = i * 7 % 200  # spread evenly
        if place < failed:
            requests.append(request(i, outcome=Outcome.timeout))
        elif place < failed + silent:
            requests.append(record(i, 100.0 * i, []))
        else:
            requests.append(request(i, gap=40 if place < failed + silent + slow else 33.333333))
    slos = [Slo.parse("tps_p5=30")]
    got, _ = of(requests, slos, max_errors=1)
    assert got == want
    level = window_summary(table(*requests), 0, 60 * SECOND, slos)
    speeds = level["tps"]
    assert speeds["n"] == 200
    assert speeds["n_failed"] == failed + silent
    # rank floor(0.05 x 199) = 9 from 0, of them in ascending order
    bad = [0.0] * (failed + silent) + [25.0] * slow
    slowest_first = [*bad, *[30.0] * 10]
    assert speeds["p5"] == pytest.approx(slowest_first[9], abs=1e-3)
    assert speeds["p50"] == pytest.approx(30, abs=1e-3)
    # a silent one has no TPOT and counts as over; goodput is of those that keep the SLO
    good_per_s = (200 - len(bad)) / 60
    assert level["goodput_per_s"] == pytest.approx(good_per_s, abs=1e-4)
    evidence = gather_evidence(table(*requests), window(1), slos)
    share = sum(over.sum() for over in evidence.over(0)[1:])
    assert share == len(bad)
