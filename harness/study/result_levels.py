"""The levels of result.json: figures of requests, server, GPUs and client in each window."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.measure.diagnosis.audit import apply_littles_law, audit_tokens, prefix_hits
from harness.measure.diagnosis.trace_split import RequestTrace, traced_split
from harness.measure.diagnosis.ttft_split import ttft_split
from harness.measure.latency_figures import blocked_windows, latency_json, sample_figures
from harness.measure.metrics import LATENCIES, SCHEDULED, SPEEDS
from harness.measure.result import Everything, Latency, Level, Speed
from harness.measure.search.evidence import backlog_growth
from harness.measure.states import Decision
from harness.measure.window_summary import window_summary
from harness.study.explain_knee import with_observations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.records.samples import ClientSample, GpuSample, ServerSample
    from harness.measure.search.next_level import SearchPlan
    from harness.study.level_state import HeldLevel
    from harness.study.token_stats import LevelTokenStats, RunTokenStats


def result_levels(
    holds: Sequence[HeldLevel],
    counted: RunTokenStats,
    samples: Sequence[ServerSample],
    plan: SearchPlan,
    *,
    clients: Sequence[ClientSample] = (),
    gpus: Sequence[GpuSample] = (),
    traces: Sequence[RequestTrace] = (),
    run_id: str = "",
    shared: tuple[int, int] = (0, 1),
) -> list[Level]:
    """The result of each level of a run, from everything in its folder."""
    table = counted.recorded.table
    # The scrapes for the TTFT breakdown of a level lie between its neighbors: after the end of the
    # level before and before the next one has settled.
    ends = [-math.inf, *(held_level.window.end_ns for held_level in holds)]
    begins = [*(held_level.window.settled_ns for held_level in holds), math.inf][1:]
    levels = []
    for held_level, low, high in zip(holds, ends, begins, strict=False):
        span = (held_level.window.settled_ns, held_level.window.end_ns)
        level = _level(
            held_level, counted.levels[held_level.window], samples, plan, clients=clients, gpus=gpus
        )
        split = ttft_split(table, samples, span, (low, high))
        traced = traced_split(table, traces, run_id, span)
        prefix = prefix_hits(table, held_level.window, samples, shared)
        levels.append(replace(level, ttft_split=split, ttft_traced=traced, prefix=prefix))
    return levels


def _level(
    held_level: HeldLevel,
    counted: LevelTokenStats,
    samples: Sequence[ServerSample],
    plan: SearchPlan,
    *,
    clients: Sequence[ClientSample],
    gpus: Sequence[GpuSample],
) -> Level:
    """All figures of the window; its requests are followed to their ends."""
    w, table = held_level.window, counted.table
    figures = window_summary(table, w.settled_ns, w.end_ns, plan.slos, counted.tokens)
    over = {}
    for i, slo in enumerate(plan.slos):
        sizes, hits = held_level.evidence.over(i)
        over[slo.name] = round(float(hits.sum() / sizes.sum()), 6) if sizes.sum() else math.nan
    latency_fields: Any = {m.field: Latency.of(figures[m.field]) for m in LATENCIES.values()}
    latency_fields |= {m.field: Speed.of(figures[m.field]) for m in SPEEDS.values()}
    latency_fields |= {
        m.field: figures[m.field] and Latency.of(figures[m.field]) for m in SCHEDULED.values()
    }
    growth, unstable = backlog_growth(table, w)
    for key in ("tokens_per_event", "exact_share", "prompt_tokens_per_s"):
        latency_fields[key] = math.nan if figures[key] is None else figures[key]
    whole = blocked_windows(counted.sent, [counted.span])
    level = Level(
        index=w.index,
        users=0 if w.rate_per_s else w.users,
        rate_per_s=w.rate_per_s,
        purpose=w.purpose,
        decision=Decision.invalid if held_level.invalid else held_level.judgement.decision,
        reason=held_level.invalid or held_level.judgement.reason,
        chosen_ns=w.chosen_ns,
        start_ns=w.start_ns,
        settled_ns=w.settled_ns,
        end_ns=w.end_ns,
        judged_ns=w.judged_ns,
        n_open=int(((table.sent_ns <= w.end_ns) & (table.done_ns > w.end_ns)).sum()),
        n_failed=figures["n_failed"],
        outcomes=figures["outcomes"],
        **latency_fields,
        in_flight=figures["in_flight"],
        backlog_per_s=round(growth, 4) if w.rate_per_s else math.nan,
        unstable=unstable,
        output_tokens_per_s=figures["output_tokens_per_s"],
        requests_per_s=figures["requests_per_s"],
        goodput_per_s=figures["goodput_per_s"],
        over_share=over,
        all=Everything(
            Latency.of(latency_json(sample_figures(counted.sent, "ttft", whole))),
            Latency.of(latency_json(counted.everything)),
        ),
        little=apply_littles_law(table, w),
        audit=audit_tokens(table, w, samples, counted.scraped),
    )
    return with_observations(
        level, w, table, plan.slos, samples, clients=clients, gpus=gpus, counted=counted
    )
