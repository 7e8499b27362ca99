"""The levels of result.json with all their figures, and why the knee is where it is."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from harness.core.load import CONCURRENT
from harness.core.states import Decision, Purpose
from harness.diagnosis.audit import (
    apply_littles_law,
    audit_sentence,
    audit_tokens,
    prefix_hits,
)
from harness.diagnosis.bottleneck import diagnose
from harness.diagnosis.client_host import UNKNOWN_HOST, HostFigures, host_figures
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
from harness.metrics.level_figures import GapFigures, GpuFigures, LateSplit, MaxNumSeqs, Source
from harness.metrics.metrics import FIRST_TOKENS, SCHEDULED, SLO_METRICS, WHOLE
from harness.metrics.numbers import format_number
from harness.metrics.result import Bottleneck, Everything, Latency, Level, SloCause, Speed
from harness.metrics.window_summary import window_summary
from harness.records.samples import (
    ClientSample,
    GpuSample,
    HostSample,
    ServerSample,
    samples_within,
)
from harness.search.cause_level import cause_level, first_to_break, times_the_knee, worst
from harness.search.trend import dependent, drift_sentence
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.core.load import LoadUnit, Number
    from harness.metrics.evidence import Evidence
    from harness.metrics.latency_figures import LatencyFigures
    from harness.metrics.level_figures import ServerFigures
    from harness.metrics.record_source import RecordSource
    from harness.metrics.result import KneeCurve
    from harness.metrics.slo import Slo
    from harness.records.folder_reader import Run
    from harness.records.record_table import RecordTable
    from harness.search.level_state import HeldLevel
    from harness.search.next_level import SearchPlan
    from harness.search.replay import LevelTokenStats, RequestGroup, RunTokenStats


PREFILL_POOL: Final = "prefill"
DECODE_POOL: Final = "decode"


def with_observations(
    level: Level,
    window: Window,
    table: RecordTable,
    slos: Sequence[Slo],
    samples: Sequence[ServerSample],
    *,
    clients: Sequence[ClientSample] = (),
    hosts: Sequence[HostSample] = (),
    gpus: Sequence[GpuSample] = (),
    some: Sequence[ServerSample] = (),
    counted: LevelTokenStats | None = None,
) -> Level:
    """The level with the observations of server, GPU, client and records.

    `some`: scrapes that not all replicas answered. `counted`: its token statistics, if they exist
    already; `table` then needs no tokens.
    """
    start_ns = window.settled_ns
    end_ns = window.end_ns
    token_gaps = counted.tokens.gaps if counted else None
    gap_sample = counted.sample if counted else None
    complete_scrapes = samples_within(samples, start_ns, end_ns)
    all_scrapes = [*complete_scrapes, *samples_within(some, start_ns, end_ns)]
    all_scrapes.sort(key=lambda scrape: scrape.at_ns)
    gpu_samples = samples_within(gpus, start_ns, end_ns)
    server = server_figures(complete_scrapes)
    return replace(
        level,
        server=server,
        # An incomplete scrape still describes the replicas that answered; how they differ from one
        # another can only be said where all of them did.
        replicas=replica_figures(all_scrapes),
        prefill=_prefill_figures(complete_scrapes),
        skew=skew_sentence(replica_figures(complete_scrapes)),
        gpu=gpu_figures(gpu_samples, level.output_tokens_per_s or math.nan),
        client=client_figures(
            table, window, slos, clients, token_gaps, host=host_figures(hosts, start_ns, end_ns)
        ),
        gaps=gap_figures(table, start_ns, end_ns, server.prefill_mean_s, gap_sample),
        arrivals=arrival_figures(table, start_ns, end_ns),
        late=late_split(table, complete_scrapes, slos),
    )


def _prefill_figures(scrapes: Sequence[ServerSample]) -> ServerFigures | None:
    """Of the servers that only prefill; None: there are none."""
    apart = [scrape.prefill for scrape in scrapes if scrape.prefill is not None]
    return server_figures(apart) if apart else None


def binding_pool(level: Level, metric: str) -> str:
    """Which servers a missed SLO is to blame on, where some only prefill; "": none do."""
    if level.prefill is None:
        return ""
    # Tokens after the first one never see a prefill server.
    if metric not in WHOLE:
        return DECODE_POOL
    split = level.ttft_split
    decode_ms = split.ttft_ms
    if metric not in FIRST_TOKENS:
        decode_ms += level.server.decode_mean_s * SECOND / MS
    return PREFILL_POOL if split.prefill_server_ms > decode_ms else DECODE_POOL


def _of_pool(level: Level, pool: str) -> Level:
    """The level with the figures of the servers that bind, for the rules to look at."""
    if pool != PREFILL_POOL or level.prefill is None:
        return level
    # Gaps and who waits where are those of the servers that decode. Utilization is a mean over the
    # GPUs of both, in which a busy one hides behind an idle one.
    return replace(
        level,
        server=level.prefill,
        gaps=GapFigures(),
        late=LateSplit(),
        gpu=GpuFigures(),
    )


def _slots_of_pool(max_num_seqs: MaxNumSeqs, pool: str) -> MaxNumSeqs:
    """The slots of the servers that bind."""
    if pool != PREFILL_POOL:
        return max_num_seqs
    engines = max_num_seqs.prefill_engines
    if max_num_seqs.source == Source.INFERRED or not engines:  # from those that decode
        return MaxNumSeqs(engines=max(engines, 1))
    return replace(max_num_seqs, engines=engines)


def bottleneck(
    slos: Sequence[Slo],
    knee: Number,
    levels: Sequence[Level],
    max_num_seqs: MaxNumSeqs,
    *,
    unit: LoadUnit = CONCURRENT,
    curves: Sequence[KneeCurve] = (),
) -> Bottleneck:
    """Apply the rules to the SLO that breaks first above the knee, at a level near it.

    `curves` say which does; without them it is the one that is broken most at that level. All that
    is read is in result.json, so that kept results can be judged again by other rules.
    """
    judged_by = [[slo] for slo in first_to_break(slos, curves, knee, levels)] or [list(slos)]
    first, *others = [
        _bottleneck_of(some, knee, levels, max_num_seqs, unit.in_server) for some in judged_by
    ]
    return replace(first, also=tuple(map(_slo_cause, others)))


def _slo_cause(found: Bottleneck) -> SloCause:
    return SloCause(found.slo, found.bound_by, found.sentence, found.confidence, found.window)


def _bottleneck_of(
    slos: Sequence[Slo],
    knee: Number,
    levels: Sequence[Level],
    max_num_seqs: MaxNumSeqs,
    unit: str,
) -> Bottleneck:
    """By that of these SLOs which is broken most, or closest to it, at a level near the knee."""
    level = cause_level(slos, knee, levels)
    if level is None:
        return diagnose(VerdictInputs())
    used = [level for level in levels if level.usable] or levels
    missed, slo = worst(slos, level)
    metric = slo.metric if slo else ""
    limit_ms = slo.limit_ns / MS if slo else math.nan
    pool = binding_pool(level, metric)
    level = _of_pool(level, pool)
    used = [_of_pool(one, pool) for one in used]
    slots = _slots_of_pool(max_num_seqs, pool)
    inputs = VerdictInputs.of(level, used, metric, limit_ms, slots)
    prefills_only = pool == PREFILL_POOL
    found = diagnose(replace(inputs, missed=missed, unit=unit, prefills_only=prefills_only))
    if pool:
        sentence = f"the servers that {pool}: {found.sentence}"
        found = replace(found, pool=pool, sentence=sentence)
    times = times_the_knee(level.load, knee)
    window = found.window
    if not math.isnan(times):
        window += f", {format_number(times)} times the knee"
    return replace(found, slo=str(slo) if slo else "", window=window, times_knee=times)


def invalid_reason(
    window: Window,
    records: RecordSource,
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
    if reset := reset_sentence(window, samples):
        return reset
    arrivals = counted.scraped if counted else None
    if unequal := audit_sentence(records, window, samples, shared, arrivals, host=host):
        return unequal
    # Without an SLO on a latency, a batch is about its time as a whole, which is known well enough.
    if not slos and window.purpose in (Purpose.batch, Purpose.sequential):
        return ""
    token_gaps = counted.tokens.gaps if counted else None
    return instrument_sentence(records, window, slos, token_gaps, host=host)


def shared_prompt_tokens(drive: Mapping[str, Any]) -> int:
    """The tokens shared by all prompts: the chat template and the system message of the workload.

    `drive`: the options in run.json; 0 where they are missing. Rows of own data may share anything,
    also with an earlier run.
    """
    if drive.get("data"):
        return sys.maxsize
    calibration = drive.get("calibration") or {}
    workload = drive.get("workload") or {}
    shared = calibration.get("shared")
    if not shared:
        rows_of_mix = [row for row, _ in workload.get("rows") or ()]
        # The rows of a mix share at most as many as the row with the longest system message has.
        system_tokens = [int(row.get("system_tokens") or 0) for row in (workload, *rows_of_mix)]
        shared = max(system_tokens)
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
    table = counted.recorded.table
    levels = []
    for i, hold in enumerate(holds):
        window = hold.window
        token_stats = counted.levels[window]
        # The scrapes for the TTFT breakdown of a level lie between its neighbors: after the end of
        # the level before and before the next one has settled.
        after_ns = -math.inf
        if i > 0:
            after_ns = holds[i - 1].window.end_ns
        before_ns = math.inf
        if i + 1 < len(holds):
            before_ns = holds[i + 1].window.settled_ns
        span_ns = (window.settled_ns, window.end_ns)
        split = ttft_split(table, run.server, span_ns, (after_ns, before_ns))
        prefix = prefix_hits(table, window, run.server, shared)
        latencies_of_rows = map(_group_latencies, token_stats.mix)
        by_row = dict(zip(mix, latencies_of_rows, strict=False))  # may have none of the last row
        by_name = {}
        for group in token_stats.names:
            by_name[_name_of(group, run.names)] = _group_latencies(group)
        level = _level(hold, token_stats, run, plan)
        levels.append(replace(level, ttft_split=split, prefix=prefix, mix=by_row, by_name=by_name))
    return levels


def _delivery(window: Window, run: Run) -> Delivery:
    drive = run.info["config"].get("drive") or {}
    exact = bool(drive.get("fixed_length"))
    return delivery(run.table, run.finishes, window.settled_ns, window.end_ns, exact=exact)


def _name_of(group: RequestGroup, names: Mapping[str, int]) -> str:
    numbers = group.group.values.tolist()
    if len(numbers) > 1:
        return f"{len(numbers):,} other names"
    for name, number in names.items():
        if number == numbers[0]:
            return name
    return NO_NAME


def _group_latencies(group: RequestGroup) -> dict[str, Latency]:
    """The latencies of the requests of one row of a mix, or of one name."""
    gaps = group.gaps
    ttft = sample_figures(group.requests, "ttft", [gaps.span])
    e2e = sample_figures(group.requests, "e2e", [gaps.span])
    return {"ttft_ms": _latency(ttft), "itl_ms": _latency(gaps), "e2e_ms": _latency(e2e)}


def _latency(figures: LatencyFigures) -> Latency:
    """As a level has it."""
    return Latency.of(latency_json(figures))


NO_NAME: Final = "(no name)"

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


def _level(hold: HeldLevel, counted: LevelTokenStats, run: Run, plan: SearchPlan) -> Level:
    """All figures of the window; its requests are followed to their ends."""
    return with_observations(
        _recorded_level(hold, counted, run, plan),
        hold.window,
        counted.table,
        plan.slos,
        run.server,
        clients=run.client,
        hosts=run.host,
        gpus=run.gpu,
        some=run.some,
        counted=counted,
    )


def _recorded_level(hold: HeldLevel, counted: LevelTokenStats, run: Run, plan: SearchPlan) -> Level:
    """The figures of a level from its records, and how well these can be relied on."""
    window = hold.window
    table = counted.table
    open_at_end = (table.sent_ns <= window.end_ns) & (table.done_ns > window.end_ns)
    backlog_per_s, unstable = backlog_growth(table, window)
    return Level(
        **_window_fields(window),
        **_summary_fields(counted, window, plan.slos),
        decision=Decision.invalid if hold.invalid else hold.judgement.decision,
        reason=hold.invalid or hold.judgement.reason,
        n_open=int(open_at_end.sum()),
        backlog_per_s=round(backlog_per_s, 4) if window.load.by_schedule else math.nan,
        unstable=unstable,
        drift=drift_sentence(hold.evidence, plan.slos),
        alike=dependent(hold.evidence, plan.slos),
        over_share=_over_shares(hold.evidence, plan.slos),
        all=_everything(counted),
        little=apply_littles_law(table, window),
        positions=counted.positions.figures(),
        audit=audit_tokens(table, window, run.server, counted.scraped),
        delivery=_delivery(window, run),
    )


def _window_fields(window: Window) -> dict[str, Any]:
    return window.to_json() | {"users": window.load.users}


def _summary_fields(
    counted: LevelTokenStats, window: Window, slos: Sequence[Slo]
) -> dict[str, Any]:
    """What the summary of the window says, by the names that the fields of a Level have."""
    summary = window_summary(counted.table, window.settled_ns, window.end_ns, slos, counted.tokens)
    fields = {name: summary[name] for name in FIGURES}
    for name in MAY_LACK:
        fields[name] = math.nan if summary[name] is None else summary[name]
    latencies: dict[str, Latency | Speed] = {}
    for metric in SLO_METRICS.values():
        figures = summary[metric.field]
        latencies[metric.field] = Speed.of(figures) if metric.speed else Latency.of(figures)
    of_schedule = {}
    for metric in SCHEDULED.values():
        figures = summary[metric.field]  # absent where requests were not sent by a schedule
        of_schedule[metric.field] = figures and Latency.of(figures)
    return fields | {"latencies": latencies, "of_schedule": of_schedule}


def _over_shares(evidence: Evidence, slos: Sequence[Slo]) -> dict[str, float]:
    """The share of observations over the limit, by SLO; NaN without any."""
    shares = {}
    for i, slo in enumerate(slos):
        sizes, hits = evidence.over(i)
        share = math.nan
        if sizes.any():
            share = float(hits.sum() / sizes.sum())
        shares[slo.name] = round(share, 6)
    return shares


def _everything(counted: LevelTokenStats) -> Everything:
    """The latencies of all requests sent for the level, warm-up and drain included."""
    spans = blocked_windows(counted.sent, [counted.span])
    ttft = sample_figures(counted.sent, "ttft", spans)
    return Everything(_latency(ttft), _latency(counted.everything))
