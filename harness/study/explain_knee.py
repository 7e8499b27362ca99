"""Why the knee is where it is: observations of each level, and the rules over them."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.measure.diagnosis.audit import audit_sentence
from harness.measure.diagnosis.bottleneck import diagnose
from harness.measure.diagnosis.gpu_window import gpu_figures
from harness.measure.diagnosis.instrument import client_figures, instrument_sentence
from harness.measure.diagnosis.interference import arrival_figures, gap_figures
from harness.measure.diagnosis.rules.inputs import VerdictInputs
from harness.measure.diagnosis.server_window import (
    replica_figures,
    reset_sentence,
    server_figures,
    skew_sentence,
)
from harness.measure.diagnosis.ttft_split import late_split
from harness.measure.records.samples import ClientSample, GpuSample, ServerSample, samples_within
from harness.measure.states import Purpose
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.measure.diagnosis.slots import MaxNumSeqs
    from harness.measure.records.record_source import RecordSource
    from harness.measure.records.record_table import RecordTable
    from harness.measure.result import Bottleneck, Level
    from harness.measure.search.evidence import Window
    from harness.measure.slo import Slo
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
    inside = samples_within(samples, start, end)
    server, replicas = server_figures(inside), replica_figures(inside)
    return replace(
        level,
        server=server,
        replicas=replicas,
        skew=skew_sentence(replicas),
        gpu=gpu_figures(samples_within(gpus, start, end), level.output_tokens_per_s or math.nan),
        client=client_figures(table, window, slos, clients, gaps),
        gaps=gap_figures(table, start, end, server.prefill_mean_s, sample),
        arrivals=arrival_figures(table, start, end),
        late=late_split(table, inside, slos),
    )


def bottleneck(
    slos: Sequence[Slo], knee: float, levels: Sequence[Level], max_num_seqs: MaxNumSeqs
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
    return diagnose(replace(VerdictInputs.of(pick, used, *limit, max_num_seqs), missed=missed))


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

    `drive`: the options in run.json; 0 where they are missing. Rows of own data may share anything,
    also with an earlier run.
    """
    if drive.get("data"):
        return sys.maxsize
    calibration, workload = drive.get("calibration") or {}, drive.get("workload") or {}
    rows = [workload, *(row for row, _ in workload.get("rows") or ())]  # of a mix: at most
    shared = calibration.get("shared") or max(int(row.get("system_tokens") or 0) for row in rows)
    return int(calibration.get("overhead") or 0) + int(shared)
