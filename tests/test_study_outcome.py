"""From steps to the knee and its bottleneck, in simulated counts."""

from dataclasses import replace

from measure_tables import SECOND, evidence, table, window

from harness.measure.diagnosis.slots import MaxNumSeqs
from harness.measure.records.samples import ServerSample
from harness.measure.search.next_level import SearchPlan
from harness.measure.slo import Slo
from harness.measure.states import Status
from harness.study.explain_knee import bottleneck
from harness.study.knee_estimate import KneeEstimate
from harness.study.level_state import HeldLevel
from harness.study.result_levels import result_levels
from harness.study.token_stats import RunTokenStats

PLAN = SearchPlan((Slo.parse("ttft_p95=500ms"),))


def step(users: int, over: float, start_s: float, end_s: float) -> HeldLevel:
    """400 requests at `users`, of which `over` are over the limit."""
    held = replace(
        evidence(users, (400, over), seconds=end_s - start_s), window=window(users, start_s, end_s)
    )
    return HeldLevel(held.window, held, PLAN.judge(held))


def test_the_verdict_looks_at_the_longest_step_above_the_knee() -> None:
    """Nine users for 2 s, seen once between two batches, then for 20 s: all seats are taken."""
    steps = [step(8, 4, 0, 10), step(9, 80, 20, 22), step(9, 80, 30, 50)]
    running = {20: 0, 21: 8, **dict.fromkeys(range(30, 50), 8)}
    samples = [ServerSample(at * SECOND, n, 1, kv_usage=0.1) for at, n in running.items()]
    windows = [step.window for step in steps]
    levels = result_levels(
        steps, RunTokenStats(table(), windows, PLAN.slos, samples), samples, PLAN
    )
    found = KneeEstimate(Status.found, 8, 8, 8, 8, 9)
    assert bottleneck(PLAN, steps, found, levels, MaxNumSeqs()).bound_by == "batch slots"
