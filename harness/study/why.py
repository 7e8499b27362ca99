"""Why the knee is where it is: what each step shows beside its latencies, and the rules over it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.measure.gpuside import gpu_figures
from harness.measure.interference import arrival_figures, gap_figures
from harness.measure.rules.facts import Facts
from harness.measure.samples import within
from harness.measure.selfcheck import client_figures
from harness.measure.serverside import server_figures
from harness.measure.verdict import conclude
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.evidence import Window
    from harness.measure.result import Bottleneck, Level
    from harness.measure.samples import ClientSample, GpuSample, ServerSample
    from harness.measure.search import SearchPlan
    from harness.measure.seats import MaxNumSeqs
    from harness.measure.slo import Slo
    from harness.measure.table import RecordTable
    from harness.study.controller import Step
    from harness.study.counted import CountedStep
    from harness.study.outcome import Found


def with_figures(
    level: Level,
    window: Window,
    table: RecordTable,
    slos: Sequence[Slo],
    samples: Sequence[ServerSample],
    *,
    clients: Sequence[ClientSample] = (),
    gpus: Sequence[GpuSample] = (),
    counted: CountedStep | None = None,
) -> Level:
    """The level, and what server, GPU, client and records show of it.

    `counted`: its tokens, where they were counted already and `table` need not have them.
    """
    gaps, drawn = (counted.tokens.gaps, counted.drawn) if counted else (None, None)
    start, end = window.settled_ns, window.end_ns
    server = server_figures(within(samples, start, end))
    return replace(
        level,
        server=server,
        gpu=gpu_figures(within(gpus, start, end), level.output_tokens_per_s or math.nan),
        client=client_figures(table, window, slos, clients, gaps),
        gaps=gap_figures(table, start, end, server.prefill_mean_s, drawn),
        arrivals=arrival_figures(table, start, end),
    )


def bottleneck(
    plan: SearchPlan,
    steps: Sequence[Step],
    found: Found,
    levels: Sequence[Level],
    max_num_seqs: MaxNumSeqs,
) -> Bottleneck:
    """Rules over the longest hold of the first level above the knee that breaks an SLO.

    Without such a level it is the first above the knee, else the highest held. A first look may
    hold three samples only, one of them taken between two batches.
    """
    users = found.users if found.users is not None else found.lo
    both = list(zip(steps, levels, strict=True))
    above = [(s, e) for s, e in both if s.window.users > users and not s.invalid]
    broken = {s.window.users for s, _ in above if _worst(plan, s)[0] > 1}
    first = min(broken or {s.window.users for s, _ in above}, default=0)
    pick = max(
        ((s, e) for s, e in above if s.window.users == first),
        key=lambda x: x[0].evidence.seconds,
        default=None,
    )
    pick = pick or max(both, key=lambda x: (x[0].window.users, x[0].evidence.seconds), default=None)
    if pick is None:
        return conclude(Facts())
    step, level = pick
    _, i = _worst(plan, step)
    slo = plan.slos[i] if plan.slos else None  # broken most, or nearest to it
    limit = (slo.metric, slo.limit_ns / MS) if slo else ("", math.nan)
    used = [e for s, e in both if not s.invalid] or levels
    return conclude(Facts.of(level, used, *limit, max_num_seqs))


def _worst(plan: SearchPlan, step: Step) -> tuple[float, int]:
    """(share over the limit against the share allowed, which SLO) of the SLO broken most."""
    shares = []
    for i, slo in enumerate(plan.slos):
        sizes, hits = step.evidence.over(i)
        shares.append((float(hits.sum() / max(sizes.sum(), 1)) / slo.allowed, i))
    return max(shares, default=(0.0, 0))
