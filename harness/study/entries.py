"""Each step of knee.json: what its window shows of requests, server, GPUs and the client."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harness.measure.audit import audit_tokens, little
from harness.measure.summary import window_summary
from harness.measure.ttft_split import ttft_split
from harness.measure.typed import to_json
from harness.study.why import window_figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.rules.facts import WindowFigures
    from harness.measure.samples import ClientSample, GpuSample, ServerSample
    from harness.measure.search import SearchPlan
    from harness.measure.ttft_split import TtftSplit
    from harness.study.controller import Step
    from harness.study.counted import Counted, CountedStep

Json = dict[str, Any]


def step_entries(
    steps: Sequence[Step],
    counted: Counted,
    samples: Sequence[ServerSample],
    plan: SearchPlan,
    *,
    clients: Sequence[ClientSample] = (),
    gpus: Sequence[GpuSample] = (),
) -> list[tuple[Json, WindowFigures]]:
    """One for each step of a run, from all that its folder holds, and the figures in it."""
    table = counted.recorded.table
    ends = [-math.inf, *(step.window.end_ns for step in steps)]
    begins = [*(step.window.settled_ns for step in steps), math.inf][1:]
    return [
        _entry(
            step,
            counted.steps[step.window],
            ttft_split(table, samples, (step.window.settled_ns, step.window.end_ns), (low, high)),
            samples,
            plan,
            clients=clients,
            gpus=gpus,
        )
        for step, low, high in zip(steps, ends, begins, strict=False)
    ]


def _entry(
    step: Step,
    counted: CountedStep,
    split: TtftSplit,
    samples: Sequence[ServerSample],
    plan: SearchPlan,
    *,
    clients: Sequence[ClientSample] = (),
    gpus: Sequence[GpuSample] = (),
) -> tuple[Json, WindowFigures]:
    """One entry of `steps`: every figure of the window, followed to the requests' ends."""
    w, table = step.window, counted.table
    figures = window_summary(table, w.settled_ns, w.end_ns, plan.slos, counted.tokens)
    open_then = int(((table.sent_ns <= w.end_ns) & (table.done_ns > w.end_ns)).sum())
    law, tokens = little(table, w), audit_tokens(table, w, samples, counted.scraped)
    over = {}
    for i, slo in enumerate(plan.slos):
        sizes, hits = step.evidence.over(i)
        over[slo.name] = round(float(hits.sum() / sizes.sum()), 6) if sizes.sum() else None
    entry: Json = {
        **asdict(w),
        "decision": "invalid" if step.invalid else step.judgement.decision,
        "reason": step.invalid or step.judgement.reason,
        "n": figures["ttft_ms"]["n"],
        "n_open": open_then,
        **figures,
    }
    for key in ("ttft", "itl"):
        for part in ("", "_ci95", "_instrument"):
            entry[f"{key}_p95_ms{part}"] = figures[f"{key}_ms"][f"p95{part}"]
    entry["over_share"] = over
    entry |= to_json({"little": law, "audit": tokens, "ttft_split": split})
    tokens_per_s = figures["output_tokens_per_s"] or math.nan
    mean_ms = figures["ttft_ms"]["mean"]
    shown = window_figures(
        w,
        table,
        plan.slos,
        samples,
        clients=clients,
        gpus=gpus,
        tokens_per_s=tokens_per_s,
        ttft_mean_ms=math.nan if mean_ms is None else float(mean_ms),
        counted=counted,
    )
    for key in ("server", "gpu", "client", "gaps", "arrivals"):
        entry[key] = to_json(getattr(shown, key))
    entry["gpu_util_pct"] = entry["gpu"]["util_pct_mean"]
    return entry, shown
