"""Comparison of two run folders from their records; both are judged by the SLOs of A."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.diagnosis.instrument import instrument_sentence
from harness.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_SLO_MISSED, ConfigError
from harness.metrics.evidence import (
    MIN_BLOCKS,
    EvidenceCounter,
    backlog_growth,
    concurrency,
    gather_evidence,
    lifetime_ns,
)
from harness.metrics.latency_figures import BlockedWindow
from harness.metrics.metrics import e2e, failed_requests, tpot, ttft
from harness.metrics.record_source import RecordsAsOf
from harness.metrics.result import Result, read_result
from harness.metrics.scan import scan
from harness.metrics.statistics import MAX_BLOCKS
from harness.metrics.token_gaps import WindowGapCounter, pool_gaps
from harness.records.folder_reader import read_run
from harness.records.json_files import flat
from harness.records.record_table import DROPPED, OK, OPEN
from harness.search import comparison as compare
from harness.search.comparison import ERROR_SHARE, KNEE, Comparison, Pair, latency_side
from harness.search.explain_knee import invalid_reason, shared_prompt_tokens
from harness.search.fit import fit_crossing, fit_levels
from harness.search.knee_estimate import ends_decided
from harness.search.recorded_plan import kind_of_run, levels_unit, logged_levels, search_plan
from harness.search.replay import RunTokenStats, requests_in_window
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.metrics.evidence import Window
    from harness.metrics.record_source import RecordSource
    from harness.metrics.scan import EventChunk
    from harness.records.folder_reader import Run
    from harness.records.record_table import RecordTable
    from harness.search.comparison import Numbers, Setting, Side
    from harness.search.next_level import SearchPlan

    Sides = dict[float, dict[str, Side]]  # level (0: of the whole run) -> metric -> figure

QUANTILES: Final = {"p50": 0.5, "p95": 0.95}
MEASURED: Final = (EXIT_OK, EXIT_SLO_MISSED, EXIT_INCONCLUSIVE)  # runs that can be compared
OF_REQUESTS: Final = {"ttft": ttft, "tpot": tpot, "e2e": e2e}


class BlockTotals:
    """All holds of one level: gaps and tokens, in blocks of at least one request lifetime."""

    def __init__(self, recorded: RecordSource, windows: Sequence[Window]) -> None:
        holds = [(requests_in_window(recorded.table, w), w.settled_ns, w.end_ns) for w in windows]
        self.spans = [
            BlockedWindow(start, end, _block_ns(t, end - start)) for t, start, end in holds
        ]
        self.start_ns = min(span.start_ns for span in self.spans)
        self.end_ns = max(span.end_ns for span in self.spans)
        self.gaps = [WindowGapCounter(recorded.table, span) for span in self.spans]
        edges = [np.append(np.arange(s, e + 1, block), e + 1) for s, e, block in self.spans]
        self.seconds = np.concatenate([np.diff(one) / SECOND for one in edges])
        self.tokens = np.zeros(len(self.seconds))
        self.in_flight = max(concurrency(recorded.table, w) for w in windows)
        self.rate = windows[0].rate_per_s
        self.unstable = any(backlog_growth(recorded.table, w)[1] for w in windows)

    def place(self, at_ns: Numbers) -> Numbers:
        """The block of each instant; -1 outside all holds."""
        out = np.full(len(at_ns), -1)
        first = 0
        for span in self.spans:
            here = (at_ns >= span.start_ns) & (at_ns <= span.end_ns)
            out[here] = first + (at_ns[here] - span.start_ns) // span.block_ns
            first += span.blocks
        return out

    def count(self, at_ns: Numbers, each: Numbers | int = 1) -> Numbers:
        """The total of `each` per block."""
        place = self.place(at_ns) + 1
        return np.bincount(place, np.broadcast_to(each, len(place)), len(self.seconds) + 1)[1:]

    def add(self, piece: EventChunk) -> None:
        for gaps in self.gaps:
            gaps.add(piece)
        self.tokens += self.count(piece.chunk.at_ns, piece.chunk.tokens)

    def sides(self, table: RecordTable) -> dict[str, Side]:
        out = {}
        gaps = pool_gaps(self.gaps)
        blocks, bins, counts = gaps.histograms["ns"].cells
        lost = np.arange(len(gaps.lost))  # infinite gaps, one value for each block
        # One value per histogram bin and block, plus one infinite value per block for lost gaps.
        values = np.append(gaps.histograms["ns"].totals[2][bins], np.full(len(lost), np.inf))
        by_block = np.append(blocks, lost), np.append(counts, gaps.lost).astype(np.float64)
        for name, q in QUANTILES.items():
            for key, observe in OF_REQUESTS.items():
                seen = observe(table)
                place = self.place(table.sent_ns[seen.row])
                if self.unstable and key != "tpot":  # it grows for as long as the level is held
                    out[f"{key}_{name}"] = compare.INFINITE
                elif (here := place >= 0).any():
                    out[f"{key}_{name}"] = latency_side(q, seen.ns[here], place[here])
            if gaps.n:
                out[f"itl_{name}"] = latency_side(q, values, *by_block)
        sent = table.sent_ns[table.outcome != DROPPED]  # what a rate counts
        requests = self.count(sent if self.rate else table.done_ns[table.outcome == OK])
        for name, amounts in (("output_tokens_per_s", self.tokens), ("requests_per_s", requests)):
            out[name] = compare.rate_side(amounts, self.seconds, self.in_flight, len(self.spans))
        if ended := self.count(table.done_ns[table.outcome != OPEN]).sum():
            bad = self.count(table.done_ns[failed_requests(table)]).sum()
            out[ERROR_SHARE] = compare.share_side(float(bad), float(ended))
        return out


def _block_ns(table: RecordTable, length_ns: int) -> int:
    """At least one lifetime; longer ones would be too few for Holm's small p-values."""
    lifetimes = max(length_ns, 1) / max(lifetime_ns(table), 1)
    return -(-max(length_ns, 1) // int(np.clip(lifetimes, MIN_BLOCKS, MAX_BLOCKS))) + 1


def level_figures(
    recorded: RecordSource, windows: Sequence[Window], plan: SearchPlan, *, searched: bool
) -> Sides:
    """The figures of each level, pooled over its holds, and the knee if one was searched."""
    # groupby needs the windows of a level next to each other.
    ordered = sorted(windows, key=lambda w: (w.users, w.settled_ns))
    seen = {n: BlockTotals(recorded, list(of)) for n, of in groupby(ordered, lambda w: w.users)}
    known = {w: RecordsAsOf(recorded, w.settled_ns, w.end_ns) for w in windows if searched}
    judged = {w: EvidenceCounter(one.table, w, plan.slos) for w, one in known.items()}
    scan(recorded, [*seen.values(), *judged.values()])
    evidences = [gather_evidence(known[w], w, plan.slos, one) for w, one in judged.items()]
    sides: Sides = {plan.load_of(n): one.sides(recorded.table) for n, one in seen.items()}
    if plan.slos and (levels := fit_levels(evidences, plan.slos, plan.max_errors)):
        decided = ends_decided(plan, levels)
        cross = fit_crossing(levels, plan.slos, plan.max_errors, plan.seed, decided=decided)
        sides[0] = {KNEE: compare.knee_side(cross, plan.rate_step_per_s or 1)}
    return sides


def common_pairs(a: Sides, b: Sides, unit: str = "users") -> list[Pair]:
    """The figures that both runs have: the knee first, then level by level."""
    common = sorted(a.keys() & b.keys())
    return [Pair(m, n, x, b[n][m], unit) for n in common for m, x in a[n].items() if m in b[n]]


def compare_folders(a: Path, b: Path, tolerance: float) -> Comparison:
    """Compare B with A, the baseline. Raises RunFolderError; ConfigError if no level is common."""
    run_a = read_run(a)
    run_b = read_run(b)
    plan = search_plan(run_a)
    search_plan(run_b)  # raises if it cannot be read
    unit = levels_unit(run_a)
    unit_b = levels_unit(run_b)
    if unit != unit_b and compare.PER_S in {unit, unit_b}:
        raise ConfigError(
            f"{a} has levels of {unit} and {b} of {unit_b}: expected two runs of one kind; "
            "try the reports of both, side by side."
        )
    sides_a = _read(run_a, plan)
    sides_b = _read(run_b, plan)
    pairs = common_pairs(sides_a, sides_b, unit)
    if not pairs:
        raise ConfigError(
            f"{a} and {b} have no level in common: found valid levels of "
            f"{_levels_held(sides_a)} and {_levels_held(sides_b)} {unit}, expected one that both "
            "held, or two knees; try `vllm-harness run` with one of them."
        )
    unlike = _unlike(_settings(run_a), _settings(run_b))
    differences = compare.compare(pairs, tolerance, plan.max_errors)
    return Comparison(str(a), str(b), tolerance, unlike, differences)


def _levels_held(sides: Sides) -> list[float]:
    return sorted(load for load in sides if load)


def _unlike(settings_a: dict[str, str], settings_b: dict[str, str]) -> dict[str, tuple[str, str]]:
    """What differs, as it is in A and in B; "?" where a run does not say."""
    unlike = {}
    for name in settings_a | settings_b:
        if settings_a.get(name) != settings_b.get(name):
            unlike[name] = (settings_a.get(name, "?"), settings_b.get(name, "?"))
    return unlike


def compare_settings(settings: Sequence[Setting], tolerance: float) -> list[Comparison]:
    """Every two settings, each by all of its runs; fills in each one's own figures.

    These are its knee and the figures at its own level: at the knee, or of given levels the
    fastest. All differences are one family: of many settings, none is found better by chance.
    """
    sides: dict[str, dict[str, Side]] = {}
    plan: SearchPlan | None = None
    unit = ""
    for setting in settings:
        runs = [read_run(run) for run, code in setting.runs.items() if code in MEASURED]
        if runs:
            # All are judged by the SLOs of the first run.
            plan = plan or search_plan(runs[0])
            unit = levels_unit(runs[0])
            setting.unit = unit
            sides[setting.name] = _mean_sides([_own_sides(run, plan) for run in runs])
            setting.figures |= _figures(sides[setting.name])
        else:
            setting.failure = _why_invalid(setting) or setting.failure
    pairs = {}
    for a, b in combinations(sides, 2):
        pairs[a, b] = common_pairs({0: sides[a]}, {0: sides[b]}, unit)
    return _as_one_family(pairs, tolerance, plan.max_errors if plan else 0)


def _as_one_family(
    pairs: dict[tuple[str, str], list[Pair]], tolerance: float, max_errors: float
) -> list[Comparison]:
    """The comparison of each two names; their figures are compared all together."""
    family = list(chain.from_iterable(pairs.values()))
    differences = iter(compare.compare(family, tolerance, max_errors))
    comparisons = []
    for (a, b), of_two in pairs.items():
        own_differences = tuple(islice(differences, len(of_two)))
        comparisons.append(Comparison(a, b, tolerance, {}, own_differences))
    return comparisons


def _why_invalid(setting: Setting) -> str:
    """What the first of its runs with a reason says; "" if none does."""
    results = [read_result(Path(run)) for run in setting.runs]
    reasons = [result.invalid_reason for result in results if result]
    return next(filter(None, reasons), "")


def _mean_sides(runs: Sequence[dict[str, Side]]) -> dict[str, Side]:
    """Each figure over the runs that have it."""
    means = {}
    for metric in dict.fromkeys(chain.from_iterable(runs)):
        sides = [run[metric] for run in runs if metric in run]
        means[metric] = compare.mean_side(metric, sides)
    return means


def _figures(sides: dict[str, Side]) -> dict[str, tuple[float, ...]]:
    """Each one's value and 95% interval, in its unit."""
    figures: dict[str, tuple[float, ...]] = {}
    for metric, side in sides.items():
        low, high = side.bounds(compare.Z95)
        ends = (compare.in_unit(metric, low), compare.in_unit(metric, high))
        figures[metric] = (side.value, *ends)
    return figures


def _own_sides(run: Run, plan: SearchPlan) -> dict[str, Side]:
    """The figures of the whole run and of its own level."""
    sides = _read(run, plan)
    own_level = _own_level(read_result(run.path) or Result())
    return sides.get(0, {}) | sides.get(own_level, {})


def _own_level(result: Result) -> float:
    """The level measured for the knee; without a search the fastest; 0: none."""
    if result.knee:
        return result.knee.measured_at or 0
    fastest = max(result.used, key=lambda level: level.output_tokens_per_s, default=None)
    return fastest.load if fastest else 0


def _read(run: Run, plan: SearchPlan) -> Sides:
    """The figures of a run folder, without its invalid levels."""
    logged = logged_levels(run)
    reasons = {entry.window: entry.invalid for entry in logged}
    unaudited = [entry.window for entry in logged if not entry.audited]
    if unaudited:
        reasons |= _audit(run, plan, unaudited)
    valid = [window for window, reason in reasons.items() if not reason]
    return level_figures(run, valid, plan, searched=kind_of_run(run).searches)


def _audit(run: Run, plan: SearchPlan, windows: Sequence[Window]) -> dict[Window, str]:
    """Why levels that were not judged while they were held may not be used; "" for a valid one."""
    config = run.info["config"]
    shared = shared_prompt_tokens(config.get("drive") or {})
    decides = kind_of_run(run).decides
    reasons = {}
    for window, level in RunTokenStats(run, windows, plan.slos, run.server).levels.items():
        if not decides:  # users may pause, as when its result was made
            gaps = level.tokens.gaps
            reasons[window] = instrument_sentence(level.known, window, plan.slos, gaps)
        else:
            reasons[window] = invalid_reason(
                window, level.known, run.server, plan.slos, shared=shared, counted=level
            )
    return reasons


def _settings(run: Run) -> dict[str, str]:
    """The settings that must be equal for a difference to be due to the server alone."""
    config = run.info["config"]
    drive = config.get("drive") or {}
    server = run.info.get("server") or {}
    client = run.info.get("hardware") or {}
    gpus = (run.info.get("gpu") or {}).get("gpus") or []
    settings: dict[str, Any] = {}
    for name in ("model", "version", "embedded", "api", "flags"):
        settings[name] = server.get(name)
    settings["GPUs"] = [gpu.get("name") for gpu in gpus]
    settings["workload"] = drive.get("workload")
    settings["SLOs"] = config.get("slos")
    settings["arrivals"] = drive.get("arrivals") or "as answers end"
    settings["client"] = {name: client.get(name) for name in ("cpu", "usable_cores")}
    return {name.replace(".", " "): str(value) for name, value in flat(settings).items()}
