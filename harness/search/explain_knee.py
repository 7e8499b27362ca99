"""The levels of result.json with all their figures, and why the knee is where it is."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from harness.core.states import Decision, Purpose
from harness.diagnosis.audit import (
    apply_littles_law,
    audit_sentence,
    audit_tokens,
    prefix_hits,
)
from harness.diagnosis.bottleneck import diagnose
from harness.diagnosis.client_host import UNKNOWN_HOST, HostFigures
from harness.diagnosis.gpu_window import gpu_figures
from harness.diagnosis.instrument import client_figures, instrument_sentence
from harness.diagnosis.interference import arrival_figures, gap_figures
from harness.diagnosis.rules.inputs import VerdictInputs
from harness.diagnosis.server_window import (
    replica_figures,
    reset_sentence,
    server_figures,
    skew_sentence,
)
from harness.diagnosis.ttft_split import late_split, ttft_split
from harness.metrics.delivery import Delivery, delivery
from harness.metrics.evidence import Window, backlog_growth
from harness.metrics.latency_figures import blocked_windows, latency_json, sample_figures
from harness.metrics.metrics import LATENCIES, SCHEDULED, SPEEDS
from harness.metrics.result import Bottleneck, Everything, Latency, Level, Speed
from harness.metrics.window_summary import window_summary
from harness.records.samples import ClientSample, GpuSample, ServerSample, samples_within
from harness.search.trend import dependent, drift_sentence
from harness.units import MS

if TYPE_CHECKING:
    from harness.metrics.level_figures import MaxNumSeqs
    from harness.metrics.record_source import RecordSource
    from harness.metrics.slo import Slo
    from harness.metrics.token_gaps import WindowGapCounter
    from harness.records.folder_reader import Run
    from harness.records.record_table import RecordTable
    from harness.search.level_state import HeldLevel
    from harness.search.next_level import SearchPlan
    from harness.search.replay import LevelTokenStats, RunTokenStats


def with_observations(
    level: Level,
    window: Window,
    table: RecordTable,
    slos: Sequence[Slo],
    samples: Sequence[ServerSample],
    *,
    clients: Sequence[ClientSample] = (),
    gpus: Sequence[GpuSample] = (),
    some: Sequence[ServerSample] = (),
    counted: LevelTokenStats | None = None,
) -> Level:
    """The level with the observations of server, GPU, client and records.

    `some`: scrapes that not all replicas answered. `counted`: its token statistics, if they exist
    already; `table` then needs no tokens.
    """
    gaps, sample = (counted.tokens.gaps, counted.sample) if counted else (None, None)
    start, end = window.settled_ns, window.end_ns
    inside = samples_within(samples, start, end)
    server, replicas = server_figures(inside), replica_figures(inside)
    each = sorted([*inside, *samples_within(some, start, end)], key=lambda sample: sample.at_ns)
    return replace(
        level,
        server=server,
        replicas=replica_figures(each),
        skew=skew_sentence(replicas),
        gpu=gpu_figures(samples_within(gpus, start, end), level.output_tokens_per_s or math.nan),
        client=client_figures(table, window, slos, clients, gaps),
        gaps=gap_figures(table, start, end, server.prefill_mean_s, sample),
        arrivals=arrival_figures(table, start, end),
        late=late_split(table, inside, slos),
    )


def bottleneck(
    slos: Sequence[Slo],
    knee: float,
    levels: Sequence[Level],
    max_num_seqs: MaxNumSeqs,
    unit: str = "users",
) -> Bottleneck:
    """Apply the rules to the longest hold of the first level above the knee that breaks an SLO.

    Without such a level, it is the first one above the knee, else the highest one. The longest hold
    is used because a quick check may have only three samples, one of them between two batches.
    All that is read is in result.json, so that kept results can be judged again by other rules.
    """
    used = [level for level in levels if level.usable] or levels
    # Just above the knee the bottleneck is saturated and nothing else is yet. A single scrape shows
    # no rates: on an H200 one second at 144 users hid a full KV cache that 160 users showed.
    above = [level for level in used if level.usable and level.load > knee]
    above = [level for level in above if level.server.samples > 1] or above
    broken = [level for level in above if _worst(slos, level)[0] > 1]
    first = min((level.load for level in broken or above), default=0)
    pick = max((x for x in above if x.load == first), key=lambda x: x.seconds, default=None)
    pick = pick or max(levels, key=lambda x: (x.load, x.seconds), default=None)
    if pick is None:
        return diagnose(VerdictInputs())
    missed, slo = _worst(slos, pick)  # the SLO broken most, or closest to it
    limit = (slo.metric, slo.limit_ns / MS) if slo else ("", math.nan)
    found = VerdictInputs.of(pick, used, *limit, max_num_seqs)
    return diagnose(replace(found, missed=missed, unit=unit if pick.users else "in flight"))


def _worst(slos: Sequence[Slo], level: Level) -> tuple[float, Slo | None]:
    """(share over the limit / allowed share, SLO) of the SLO that is broken most."""
    shares = [(level.over_share.get(slo.name, math.nan) / slo.allowed, slo) for slo in slos]
    known = [one for one in shares if not math.isnan(one[0])] or shares
    return max(known, key=lambda one: one[0], default=(math.nan, None))


def invalid_reason(
    window: Window,
    seen: RecordSource,
    samples: Sequence[ServerSample],
    slos: Sequence[Slo],
    *,
    shared: int,
    counted: LevelTokenStats | None = None,
    host: HostFigures = UNKNOWN_HOST,
) -> str:
    """Why the level is invalid, or "". `counted`: its token statistics, if they exist already.

    `shared`: the number of tokens that all prompts begin with; `host`: the client's machine.
    """
    arrived, gaps = (counted.scraped, counted.tokens.gaps) if counted else (None, None)
    # Without an SLO on a latency, a batch is about its time as a whole, which is known well enough.
    timed_as_one = not slos and window.purpose in (Purpose.batch, Purpose.sequential)
    return (
        reset_sentence(window, samples)
        or audit_sentence(seen, window, samples, shared, arrived, host=host)
        or ("" if timed_as_one else instrument_sentence(seen, window, slos, gaps, host=host))
    )


def shared_prompt_tokens(drive: Mapping[str, Any]) -> int:
    """The tokens shared by all prompts: the chat template and the system message of the workload.

    `drive`: the options in run.json; 0 where they are missing. Rows of own data may share anything,
    also with an earlier run.
    """
    if drive.get("data"):
        return sys.maxsize
    calibration, workload = drive.get("calibration") or {}, drive.get("workload") or {}
    rows = [workload, *(row for row, _ in workload.get("rows") or ())]  # of a mix: at most
    shared = calibration.get("shared") or max(int(row.get("system_tokens") or 0) for row in rows)
    return int(calibration.get("overhead") or 0) + int(shared)


def result_levels(
    holds: Sequence[HeldLevel],
    counted: RunTokenStats,
    run: Run,
    plan: SearchPlan,
    shared: tuple[int, int] = (0, 1),
    *,
    mix: Sequence[str] = (),
) -> list[Level]:
    """The result of each level of a run, from everything in its folder."""
    table, samples = counted.recorded.table, run.server
    # The scrapes for the TTFT breakdown of a level lie between its neighbors: after the end of the
    # level before and before the next one has settled.
    ends = [-math.inf, *(held_level.window.end_ns for held_level in holds)]
    begins = [*(held_level.window.settled_ns for held_level in holds), math.inf][1:]
    levels = []
    for held_level, low, high in zip(holds, ends, begins, strict=False):
        window = held_level.window
        span = (window.settled_ns, window.end_ns)
        level = _level(held_level, counted.levels[window], run, plan)
        split = ttft_split(table, samples, span, (low, high))
        prefix = prefix_hits(table, window, samples, shared)
        rows = map(_mix_row, counted.levels[window].mix)
        of = dict(zip(mix, rows, strict=False))  # a level may have none of the last row
        levels.append(replace(level, ttft_split=split, prefix=prefix, mix=of))
    return levels


def _delivery(window: Window, run: Run) -> Delivery:
    exact = bool((run.info["config"].get("drive") or {}).get("fixed_length"))
    span = window.settled_ns, window.end_ns
    return delivery(run.table, run.finishes, *span, exact=exact)


def _mix_row(of: tuple[RecordTable, WindowGapCounter]) -> dict[str, Latency]:
    table, gaps = of
    ttft, e2e = (sample_figures(table, key, [gaps.span]) for key in ("ttft", "e2e"))
    seen = {"ttft_ms": ttft, "itl_ms": gaps, "e2e_ms": e2e}
    return {key: Latency.of(latency_json(one)) for key, one in seen.items()}


# Figures of a window that the level has under the same name; these may be unknown:
FIGURES: Final = (
    "n_failed",
    "outcomes",
    "in_flight",
    "output_tokens_per_s",
    "requests_per_s",
    "goodput_per_s",
)
MAY_LACK: Final = ("tokens_per_event", "exact_share", "prompt_tokens_per_s", "came_at_once")


def _level(held_level: HeldLevel, counted: LevelTokenStats, run: Run, plan: SearchPlan) -> Level:
    """All figures of the window; its requests are followed to their ends."""
    w, table = held_level.window, counted.table
    found = window_summary(table, w.settled_ns, w.end_ns, plan.slos, counted.tokens)
    over = {}
    for i, slo in enumerate(plan.slos):
        sizes, hits = held_level.evidence.over(i)
        over[slo.name] = round(float(hits.sum() / sizes.sum()), 6) if sizes.sum() else math.nan
    growth, unstable = backlog_growth(table, w)
    whole = blocked_windows(counted.sent, [counted.span])
    figures: dict[str, Any] = {
        **asdict(w),
        **{key: found[key] for key in FIGURES},
        **{key: math.nan if found[key] is None else found[key] for key in MAY_LACK},
        **{m.field: Latency.of(found[m.field]) for m in LATENCIES.values()},
        **{m.field: Speed.of(found[m.field]) for m in SPEEDS.values()},
        **{m.field: found[m.field] and Latency.of(found[m.field]) for m in SCHEDULED.values()},
    }
    figures |= {"users": 0} if w.rate_per_s else {}
    level = Level(
        **figures,
        decision=Decision.invalid if held_level.invalid else held_level.judgement.decision,
        reason=held_level.invalid or held_level.judgement.reason,
        n_open=int(((table.sent_ns <= w.end_ns) & (table.done_ns > w.end_ns)).sum()),
        backlog_per_s=round(growth, 4) if w.rate_per_s else math.nan,
        unstable=unstable,
        drift=drift_sentence(held_level.evidence, plan.slos),
        alike=dependent(held_level.evidence, plan.slos),
        over_share=over,
        all=Everything(
            Latency.of(latency_json(sample_figures(counted.sent, "ttft", whole))),
            Latency.of(latency_json(counted.everything)),
        ),
        little=apply_littles_law(table, w),
        positions=counted.positions.figures(),
        audit=audit_tokens(table, w, run.server, counted.scraped),
        delivery=_delivery(w, run),
    )
    return with_observations(
        level,
        w,
        table,
        plan.slos,
        run.server,
        clients=run.client,
        gpus=run.gpu,
        some=run.some,
        counted=counted,
    )
