"""What the cause of the knee is judged by: which SLO, which level, and the level held for it."""

from __future__ import annotations

from dataclasses import replace
from math import isnan, nan
from typing import TYPE_CHECKING

import pytest
from simulated_knee import drive

from harness.core.load import Users
from harness.core.states import Decision, Purpose, Status, StopRule
from harness.engine.config import EngineConfig
from harness.metrics.level_figures import (
    GapFigures,
    GpuFigures,
    LateSplit,
    MaxNumSeqs,
    ServerFigures,
    Source,
    TtftSplit,
)
from harness.metrics.result import KneeCurve, Latency, Level
from harness.metrics.slo import Slo
from harness.report.cause_words import cause_sentences
from harness.search.cause_hold import MEASURED_NS, search_with_cause, searching
from harness.search.cause_level import cause_level, first_to_break, times_the_knee
from harness.search.confirm import confirming, searched
from harness.search.controller import KneeController
from harness.search.explain_knee import binding_pool, bottleneck
from harness.search.level_state import next_level
from harness.search.next_level import Done, Hold, SearchPlan
from harness.search.replay import LoggedLevel, RunTokenStats, replay
from harness.units import SECOND
from lab.closed_loop import ClosedLoop, Traffic
from lab.simulated_records import SimulatedRecords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.search.level_state import HeldLevel


@pytest.mark.parametrize(
    ("prefill", "metric", "ttft_ms", "want"),
    [
        (None, "ttft", 10.0, ""),
        (ServerFigures(), "ttft", 10.0, "prefill"),  # 30 ms were the prefill server's
        (ServerFigures(), "ttft", 50.0, "decode"),
        (ServerFigures(), "itl", 10.0, "decode"),  # which no prefill server sees
        (ServerFigures(), "ttft", nan, "decode"),
        (ServerFigures(), "e2e", 10.0, "decode"),  # and 25 ms of decoding
    ],
)
def test_the_servers_that_bind(
    prefill: ServerFigures | None, metric: str, ttft_ms: float, want: str
) -> None:
    """By whose part of the TTFT is larger, where some servers only prefill."""
    split = TtftSplit(prefill_server_ms=30.0, ttft_ms=ttft_ms)
    server = ServerFigures(decode_mean_s=0.025)
    level = Level(0, 8, server=server, prefill=prefill, ttft_split=split)
    assert binding_pool(level, metric) == want


# Composed: 32 users of one server that prefills and one that decodes. The first has two prompts in
# its steps and six in its queue; the second has 24 of its 24 slots taken while requests wait, its
# GPU is idle half of the time, and gaps are alike.
PREFILLS = ServerFigures(
    samples=20,
    running_mean=2,
    running_max=2,
    running_flat_share=1.0,
    waiting_mean=6,
    kv_usage_max=0.2,
    preemptions=0,
    ttft_mean_s=0.55,
    queue_mean_s=0.4,
    prefill_mean_s=0.14,
    decode_mean_s=0.0,
)
DECODES = ServerFigures(
    samples=20,
    running_mean=24,
    running_max=24,
    running_flat_share=1.0,
    waiting_mean=2,
    kv_usage_max=0.4,
    preemptions=0,
    ttft_mean_s=0.06,
    queue_mean_s=0.04,
    prefill_mean_s=0.01,
    decode_mean_s=1.2,
)
APART = Level(
    0,
    32,
    end_ns=20 * SECOND,
    over_share={"ttft_p95": 0.3},
    server=DECODES,
    prefill=PREFILLS,
    latencies={"ttft_ms": Latency(mean=630.0)},
    ttft_split=TtftSplit(prefill_server_ms=550.0, ttft_ms=60.0, residual_ms=20.0),
    gpu=GpuFigures(gpus=2, util_pct_mean=55.0),
    late=LateSplit(100, queue=0.1, outside=0.8),
    gaps=GapFigures(prompt_share=0.99, p50_ms=20, p95_ms=22, mean_ms=20, alone_p95_ms=21),
)


@pytest.mark.parametrize(
    ("slots", "want", "confidence"),
    [
        (MaxNumSeqs(24, Source.INFERRED, 1, 1), "prefill compute", 0.9),  # those of the other
        (MaxNumSeqs(256, Source.READ, 1, 1), "prefill compute", 0.9),
        (MaxNumSeqs(1, Source.READ, 24, 2), "batch slots", 0.7),
        (MaxNumSeqs(256, Source.READ), "prefill compute", 0.9),  # kept before they were counted
    ],
)
def test_servers_that_prefill_are_judged_by_their_own_figures(
    slots: MaxNumSeqs, want: str, confidence: float
) -> None:
    """Neither by gaps, slots and late requests of those that decode, nor by the GPUs of both."""
    levels = [replace(APART, users=1, over_share={"ttft_p95": 0.0}), APART]
    found = bottleneck((TTFT,), 30, levels, slots)
    assert (found.pool, found.bound_by, found.confidence) == ("prefill", want, confidence)
    assert found.sentence.startswith("the servers that prefill: ")


TTFT = Slo.parse("ttft_p95=500ms")
ITL = Slo.parse("itl_p95=50ms")
BOTH = (TTFT, ITL)
SCRAPED = ServerFigures(samples=4, running_mean=8)


def curve(slo: Slo, estimate: int, low: int, high: int) -> KneeCurve:
    """At half its limit, and at its own."""
    points = ((slo.limit / 2, 1, 1, 1), (slo.limit, estimate, low, high))
    return KneeCurve(slo.name, slo.limit, points)


def held(users: int, seconds: float, ttft: float, itl: float = 0.0, scrapes: int = 4) -> Level:
    """A hold with these shares over the limits."""
    return Level(
        0,
        users,
        end_ns=round(seconds * SECOND),
        over_share={TTFT.name: ttft, ITL.name: itl},
        server=replace(SCRAPED, samples=scrapes),
    )


@pytest.mark.parametrize(
    ("curves", "want"),
    [
        ([curve(TTFT, 140, 130, 150), curve(ITL, 200, 180, 220)], [TTFT]),
        ([curve(TTFT, 200, 180, 220), curve(ITL, 140, 130, 150)], [ITL]),
        # each lies within the other's interval
        ([curve(TTFT, 145, 130, 150), curve(ITL, 140, 130, 150)], [ITL, TTFT]),
        # 200 is within 140 (120-300), but 140 is not within 200 (180-220)
        ([curve(TTFT, 200, 180, 220), curve(ITL, 140, 120, 300)], [ITL]),
        ([curve(TTFT, 162, 150, 162), KneeCurve("itl_p95", 50, ((43, 141, 127, 151),))], [TTFT]),
        ([], []),
    ],
)
def test_the_slo_that_breaks_first(curves: list[KneeCurve], want: list[Slo]) -> None:
    """By each SLO's own knee, at its own limit."""
    assert first_to_break(BOTH, curves, 140, [held(128, 5, 0), held(256, 5, 1)]) == want


@pytest.mark.parametrize(
    ("near", "want"),
    [
        # Two GPUs: 58 ms at 131 and 132, held long, and in time again at 256.
        ([held(131, 42, 0.01, 0.07), held(132, 33, 0.02, 0.06)], [ITL]),
        # One of three is over by chance; together they are not.
        ([held(125, 12, 0, 0.063), held(135, 42, 0.01, 0.045), held(140, 32, 0.1, 0.04)], [TTFT]),
        ([], [TTFT]),
    ],
)
def test_gaps_that_are_in_time_again_far_above(near: list[Level], want: list[Slo]) -> None:
    """Requests queue elsewhere at 256 users, so ITL has no knee of its own; that of all is 120."""
    levels = [held(64, 5, 0), *near, held(256, 5, 0.9, 0.02)]
    curves = [curve(TTFT, 170, 133, 255), KneeCurve("itl_p95", 50, ())]
    assert first_to_break(BOTH, curves, 120, levels) == want


@pytest.mark.parametrize(
    ("levels", "want"),
    [
        # the longer hold within 25% of the knee, rather than a check of 3 s between two batches
        ([held(105, 3, 0.1), held(115, 27, 0.1), held(256, 60, 1)], (115, 27)),
        # of two that are long enough, the nearer one
        ([held(105, 20, 0.1), held(115, 27, 0.1)], (105, 20)),
        # beyond 25% the lowest, however long another was held
        ([held(130, 5, 0.1), held(200, 60, 1)], (130, 5)),
        # a level near the knee that breaks nothing shows no cause
        ([held(120, 40, 0.01), held(200, 5, 1)], (200, 5)),
        # by ITL alone
        ([held(110, 12, 0, 0.06), held(120, 30, 0.0, 0.04)], (110, 12)),
    ],
)
def test_the_level_near_the_knee(levels: list[Level], want: tuple[int, float]) -> None:
    """Of a knee of 100 users."""
    found = cause_level(BOTH, 100, levels)
    assert found is not None
    assert (found.load, found.seconds) == want


@pytest.mark.parametrize(
    ("load", "knee", "want"),
    [
        (125, 100, nan),
        (126, 100, 1.26),
        (256, 120, 2.13),
        (3, 2, nan),  # the next level
        (4, 2, 2.0),
        (12.5, 10.0, nan),  # requests/s
        (20, 0, nan),  # no knee
    ],
)
def test_how_far_above_the_knee(load: float, knee: float, want: float) -> None:
    """Nothing is said of a level that is at most 25% above it."""
    assert times_the_knee(load, knee) == pytest.approx(want, nan_ok=True)


def slow_api(users: int, share: float, cores: float) -> Level:
    """First tokens wait outside of the engine, for a busy API server; so do late events."""
    return replace(
        held(users, 20, share, share),
        latencies={"ttft_ms": Latency(mean=600.0)},
        server=replace(SCRAPED, samples=20, api_server_cores=cores, waiting_mean=0.0),
        late=LateSplit(100, queue=0.0, outside=0.9),
        gaps=GapFigures(late_share=0.2, p95_ms=60.0, mean_ms=20.0),
    )


def test_both_slos_and_the_same_cause() -> None:
    """They break within each other's interval: both are said."""
    curves = [curve(TTFT, 105, 95, 115), curve(ITL, 100, 90, 110)]
    levels = [held(1, 5, 0), held(90, 20, 0.01), slow_api(112, 0.2, 0.95)]
    found = bottleneck(BOTH, 100, levels, MaxNumSeqs(), curves=curves)
    (other,) = found.also
    assert (found.slo, found.bound_by) == (str(ITL), "front end")
    assert (other.slo, other.bound_by) == (str(TTFT), "front end")
    assert isnan(found.times_knee)
    first, second, _ = cause_sentences(found)
    assert first.startswith("Bottleneck of p95 ITL: the API server cannot keep up")
    assert second == "p95 TTFT breaks at about the same load, for the same reason."
    another = replace(found, also=(replace(other, bound_by="batch slots", sentence="all taken"),))
    _, second, _ = cause_sentences(another)
    assert second == "p95 TTFT breaks at about the same load: all taken (confidence 0.89)."


def test_a_cause_that_is_far_away_is_called_so() -> None:
    """The only failing level is at twice the knee."""
    levels = [held(1, 5, 0), held(100, 20, 0.01), slow_api(200, 0.9, 0.95)]
    found = bottleneck((TTFT,), 100, levels, MaxNumSeqs())
    assert (found.slo, found.times_knee, found.also) == (str(TTFT), 2.0, ())
    assert found.window == "200 users held for 20 s, 20 readings of the server, 2.00 times the knee"
    assert cause_sentences(found)[1] == (
        "It is the cause at 2.00 times the knee, as no level nearer to it breaks the SLO: "
        "at the knee another may bind."
    )


@pytest.mark.parametrize(
    ("cores", "want"),
    [
        (0.49, 0.0),  # it has time
        (0.50, 0.47),
        (0.70, 0.70),
        (0.84, 0.88),  # at 0.84 of one search it was 0.5, and at 0.86 of the next 0.9
        (0.86, 0.89),
        (nan, 0.50),
    ],
)
def test_the_api_servers_share_rises_with_its_cpu(cores: float, want: float) -> None:
    """There is no cliff: requests come in waves, so a mean over waves hides a full process."""
    levels = [held(1, 5, 0), slow_api(110, 0.2, cores)]
    found = bottleneck((TTFT,), 100, levels, MaxNumSeqs())
    by_name = {cause.name: cause.probability for cause in found.causes}
    assert by_name.get("front end", 0.0) == pytest.approx(want, abs=0.02)


SLOTS = EngineConfig(max_num_seqs=34)
TRAFFIC = Traffic(128, 64, 0.3)
SLOS = (Slo.parse("ttft_p95=300ms"),)
# So wide that no level near the knee of 43 users is worth its time.
WIDE = SearchPlan(SLOS, seed=2, precision=2.0)


def ended(plan: SearchPlan, monkeypatch: pytest.MonkeyPatch) -> tuple[KneeController, ClosedLoop]:
    """A search with a level for its cause, in simulated time."""
    monkeypatch.setattr(SimulatedRecords, "forget", lambda _self, before_ns: before_ns)
    loop = ClosedLoop(SLOTS, TRAFFIC, 2)
    return drive(KneeController(plan, loop, choose=search_with_cause), loop), loop


def test_a_level_is_held_for_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a search whose failing level is far away; its answer is as it was without that level."""
    control, loop = ended(WIDE, monkeypatch)
    *own, last = control.levels
    assert [level.window.purpose for level in own].count(Purpose.cause) == 0
    assert (last.window.purpose, last.window.load) == (Purpose.cause, Users(53))
    assert last.window.end_ns - last.window.settled_ns == pytest.approx(MEASURED_NS, abs=SECOND)
    without = drive(KneeController(WIDE, again := ClosedLoop(SLOTS, TRAFFIC, 2)), again)
    assert control.result == without.result
    assert [x.window for x in own] == [x.window for x in without.levels]

    windows = [level.window for level in control.levels]
    counted = RunTokenStats(loop.table(0, loop.now_ns), windows, SLOS)
    logged = [LoggedLevel(x.window, x.invalid, x.judgement.decision) for x in control.levels]
    repeated = replay(WIDE, logged, counted)
    assert (repeated.differences, repeated.done) == ([], control.result)
    assert repeated.levels[-1].judgement.decision == Decision.held
    assert len(searched(repeated.levels)) == len(own)


@pytest.mark.parametrize(
    "plan",
    [
        replace(WIDE, budget_ns=40 * SECOND),  # nothing is left
        replace(WIDE, precision=0.05),  # levels near the knee fail
        replace(WIDE, max_users=44),  # none may be held above it
    ],
)
def test_no_level_is_held_for_the_cause(plan: SearchPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not needed, or cannot be paid."""
    control, _ = ended(plan, monkeypatch)
    assert Purpose.cause not in {level.window.purpose for level in control.levels}


def test_the_promise_is_confirmed_after_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The level for the cause is none of the four that confirm."""
    plan = SearchPlan(SLOS, seed=2, precision=0.3)
    monkeypatch.setattr(SimulatedRecords, "forget", lambda _self, before_ns: before_ns)
    for_cause = Hold(Users(50), Purpose.cause, StopRule.time, 5 * SECOND)

    def search(plan: SearchPlan, levels: Sequence[HeldLevel], spent_ns: int) -> Hold | Done:
        own = searched(levels)
        action = next_level(plan, own, spent_ns)
        is_over = isinstance(action, Done) and len(own) == len(levels)
        return for_cause if is_over else action

    loop = ClosedLoop(SLOTS, TRAFFIC, 2)
    control = drive(KneeController(plan, loop, choose=confirming(40 * SECOND, search)), loop)
    assert control.result is not None
    assert control.result.status == Status.found
    after = [level.window.purpose for level in control.levels[len(searched(control.levels)) :]]
    assert after == [Purpose.cause, *[Purpose.hold] * 4]


def test_without_metrics_no_level_is_held_for_them() -> None:
    """A server that shows nothing shows nothing near the knee either."""
    assert searching(has_metrics=False) is next_level
    assert searching(has_metrics=True) is search_with_cause
