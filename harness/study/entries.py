"""Each level of result.json: what its window shows of requests, server, GPUs and the client."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.measure.audit import audit_tokens, little
from harness.measure.figures import block, sample_of, spans_of
from harness.measure.result import Everything, Latency, Level
from harness.measure.slo import LATENCIES
from harness.measure.states import Decision
from harness.measure.summary import window_summary
from harness.measure.traces import traced_split
from harness.measure.ttft_split import ttft_split
from harness.study.why import with_figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.samples import ClientSample, GpuSample, ServerSample
    from harness.measure.search import SearchPlan
    from harness.measure.traces import Trace
    from harness.study.controller import Step
    from harness.study.counted import Counted, CountedStep


def step_levels(
    steps: Sequence[Step],
    counted: Counted,
    samples: Sequence[ServerSample],
    plan: SearchPlan,
    *,
    clients: Sequence[ClientSample] = (),
    gpus: Sequence[GpuSample] = (),
    traces: Sequence[Trace] = (),
    run_id: str = "",
) -> list[Level]:
    """One for each step of a run, from all that its folder holds."""
    table = counted.recorded.table
    ends = [-math.inf, *(step.window.end_ns for step in steps)]
    begins = [*(step.window.settled_ns for step in steps), math.inf][1:]
    levels = []
    for step, low, high in zip(steps, ends, begins, strict=False):
        span = (step.window.settled_ns, step.window.end_ns)
        level = _level(step, counted.steps[step.window], samples, plan, clients=clients, gpus=gpus)
        split = ttft_split(table, samples, span, (low, high))
        traced = traced_split(table, traces, run_id, span)
        levels.append(replace(level, ttft_split=split, ttft_traced=traced))
    return levels


def _level(
    step: Step,
    counted: CountedStep,
    samples: Sequence[ServerSample],
    plan: SearchPlan,
    *,
    clients: Sequence[ClientSample],
    gpus: Sequence[GpuSample],
) -> Level:
    """Every figure of the window, its requests followed to their ends."""
    w, table = step.window, counted.table
    figures = window_summary(table, w.settled_ns, w.end_ns, plan.slos, counted.tokens)
    over = {}
    for i, slo in enumerate(plan.slos):
        sizes, hits = step.evidence.over(i)
        over[slo.name] = round(float(hits.sum() / sizes.sum()), 6) if sizes.sum() else math.nan
    latency = {key: Latency.of(figures[f"{key}_ms"]) for key in LATENCIES}
    whole = spans_of(counted.sent, [counted.span])
    level = Level(
        index=w.index,
        users=w.users,
        purpose=w.purpose,
        decision=Decision.invalid if step.invalid else step.judgement.decision,
        reason=step.invalid or step.judgement.reason,
        chosen_ns=w.chosen_ns,
        start_ns=w.start_ns,
        settled_ns=w.settled_ns,
        end_ns=w.end_ns,
        judged_ns=w.judged_ns,
        n_open=int(((table.sent_ns <= w.end_ns) & (table.done_ns > w.end_ns)).sum()),
        n_failed=figures["n_failed"],
        outcomes=figures["outcomes"],
        ttft_ms=latency["ttft"],
        ttfot_ms=latency["ttfot"],
        itl_ms=latency["itl"],
        tpot_ms=latency["tpot"],
        e2e_ms=latency["e2e"],
        output_tokens_per_s=figures["output_tokens_per_s"],
        requests_per_s=figures["requests_per_s"],
        goodput_per_s=figures["goodput_per_s"],
        exact_share=math.nan if figures["exact_share"] is None else figures["exact_share"],
        over_share=over,
        all=Everything(
            Latency.of(block(sample_of(counted.sent, "ttft", whole))),
            Latency.of(block(counted.everything)),
        ),
        little=little(table, w),
        audit=audit_tokens(table, w, samples, counted.scraped),
    )
    return with_figures(
        level, w, table, plan.slos, samples, clients=clients, gpus=gpus, counted=counted
    )
