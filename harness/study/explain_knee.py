"""Why the knee is where it is: observations of each level, and the rules over them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.measure.diagnosis.audit import audit_sentence
from harness.measure.diagnosis.bottleneck import diagnose
from harness.measure.diagnosis.gpu_window import gpu_figures
from harness.measure.diagnosis.instrument import client_figures, instrument_sentence
from harness.measure.diagnosis.interference import arrival_figures, gap_figures
from harness.measure.diagnosis.rules.inputs import VerdictInputs
from harness.measure.diagnosis.server_window import reset_sentence, server_figures
from harness.measure.records.samples import samples_within
from harness.measure.states import Purpose
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.measure.diagnosis.slots import MaxNumSeqs
    from harness.measure.records.record_source import RecordSource
    from harness.measure.records.record_table import RecordTable
    from harness.measure.records.samples import ClientSample, GpuSample, ServerSample
    from harness.measure.result import Bottleneck, Level
    from harness.measure.search.evidence import Window
    from harness.measure.search.next_level import SearchPlan
    from harness.measure.slo import Slo
    from harness.study.knee_estimate import KneeEstimate
    from harness.study.level_state import HeldLevel
    from harness.study.token_stats import LevelTokenStats


def with_observations(
    level: Level,
    window: Window,
    table: RecordTable,
    slos: Sequence[Slo],
    samples: Sequence[ServerSample],
    *,
    clients: Sequence[ClientSample] = (),
    gpus: Sequence[GpuSample] = (),
    counted: LevelTokenStats | None = None,
) -> Level:
    """The level with the observations of server, GPU, client and records.

    `counted`: its token statistics, if they exist already; `table` then needs no tokens.
    """
    gaps, sample = (counted.tokens.gaps, counted.sample) if counted else (None, None)
    start, end = window.settled_ns, window.end_ns
    server = server_figures(samples_within(samples, start, end))
    return replace(
        level,
        server=server,
        gpu=gpu_figures(samples_within(gpus, start, end), level.output_tokens_per_s or math.nan),
        client=client_figures(table, window, slos, clients, gaps),
        gaps=gap_figures(table, start, end, server.prefill_mean_s, sample),
        arrivals=arrival_figures(table, start, end),
    )


def bottleneck(
    plan: SearchPlan,
    holds: Sequence[HeldLevel],
    found: KneeEstimate,
    levels: Sequence[Level],
    max_num_seqs: MaxNumSeqs,
) -> Bottleneck:
    """Apply the rules to the longest hold of the first level above the knee that breaks an SLO.

    Without such a level, it is the first one above the knee, else the highest one. The longest hold
    is used because a quick check may have only three samples, one of them between two batches.
    """
    users = found.users if found.users is not None else found.lo
    both = list(zip(holds, levels, strict=True))
    # Just above the knee the bottleneck is saturated and nothing else is yet.
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
        return diagnose(VerdictInputs())
    held_level, level = pick
    _, i = _worst(plan, held_level)
    slo = plan.slos[i] if plan.slos else None  # the SLO broken most, or closest to it
    limit = (slo.metric, slo.limit_ns / MS) if slo else ("", math.nan)
    used = [e for s, e in both if not s.invalid] or levels
    return diagnose(VerdictInputs.of(level, used, *limit, max_num_seqs))


def _worst(plan: SearchPlan, level: HeldLevel) -> tuple[float, int]:
    """(share over the limit / allowed share, index) of the SLO that is broken most."""
    shares = []
    for i, slo in enumerate(plan.slos):
        sizes, hits = level.evidence.over(i)
        shares.append((float(hits.sum() / max(sizes.sum(), 1)) / slo.allowed, i))
    return max(shares, default=(0.0, 0))


def invalid_reason(
    window: Window,
    seen: RecordSource,
    samples: Sequence[ServerSample],
    slos: Sequence[Slo],
    *,
    shared: int,
    counted: LevelTokenStats | None = None,
) -> str:
    """Why the level is invalid, or "". `counted`: its token statistics, if they exist already.

    `shared`: the number of tokens that all prompts begin with.
    """
    arrived, gaps = (counted.scraped, counted.tokens.gaps) if counted else (None, None)
    # Without an SLO on a latency, a batch is about its time as a whole, which is known well enough.
    timed_as_one = not slos and window.purpose in (Purpose.batch, Purpose.sequential)
    return (
        reset_sentence(window, samples)
        or audit_sentence(seen, window, samples, shared, arrived)
        or ("" if timed_as_one else instrument_sentence(seen, window, slos, gaps))
    )


def shared_prompt_tokens(drive: Mapping[str, Any]) -> int:
    """The tokens shared by all prompts: the chat template and the system message of the workload.

    `drive`: the options in run.json; 0 where they are missing.
    """
    calibration, workload = drive.get("calibration") or {}, drive.get("workload") or {}
    return int(calibration.get("overhead") or 0) + int(workload.get("system_tokens") or 0)
