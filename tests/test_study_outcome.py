"""From steps to knee.json, in simulated counts."""

from dataclasses import replace

from measure_tables import SECOND, evidence, table, window

from harness.measure.samples import ServerSample
from harness.measure.search import Done, SearchPlan
from harness.measure.slo import Slo
from harness.study.controller import Step
from harness.study.outcome import knee_json

PLAN = SearchPlan((Slo.parse("ttft_p95=500ms"),))


def step(users: int, over: float, start_s: float, end_s: float) -> Step:
    """400 requests at `users`, of which `over` are over the limit."""
    held = replace(
        evidence(users, (400, over), seconds=end_s - start_s), window=window(users, start_s, end_s)
    )
    return Step(held.window, held, PLAN.judge(held))


def test_the_verdict_looks_at_the_longest_step_above_the_knee() -> None:
    """Nine users for 2 s, seen once between two batches, then for 20 s: all seats are taken."""
    steps = [step(8, 4, 0, 10), step(9, 80, 20, 22), step(9, 80, 30, 50)]
    running = {20: 0, 21: 8, **dict.fromkeys(range(30, 50), 8)}
    samples = [ServerSample(at * SECOND, n, 1, kv_usage=0.1) for at, n in running.items()]
    result = knee_json(PLAN, steps, Done("found", (8, 9)), table(), samples)
    assert (result["knee"]["users"], result["verdict"]["bound_by"]) == (8, "batch slots")
