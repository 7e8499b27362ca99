"""Comparison of two run folders from their records; both are judged by the SLOs of A."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from harness.core.load import CONCURRENT
from harness.diagnosis.instrument import instrument_sentence
from harness.diagnosis.send_delay import send_delay_sentence
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
    from collections.abc import Mapping

    from harness.core.arrays import Floats
    from harness.core.load import Load, LoadUnit
    from harness.metrics.evidence import Evidence, Window
    from harness.metrics.record_source import RecordSource
    from harness.metrics.scan import EventChunk
    from harness.metrics.token_gaps import GapCounter
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
        table = recorded.table
        self.spans = [_in_blocks(table, window) for window in windows]
        self.start_ns = min(span.start_ns for span in self.spans)
        self.end_ns = max(span.end_ns for span in self.spans)
        self.gaps = [WindowGapCounter(table, span) for span in self.spans]
        self.seconds = np.concatenate([_block_seconds(span) for span in self.spans])
        self.tokens = np.zeros(len(self.seconds))
        # Users may run in step: `rate_side` has to know how many can be in one wave.
        self.in_flight = max(concurrency(table, window) for window in windows)
        self.by_schedule = windows[0].load.by_schedule
        self.unstable = any(_is_unstable(table, window) for window in windows)

    def place(self, at_ns: Numbers) -> Numbers:
        """The block of each instant; -1 outside all holds."""
        out = np.full(len(at_ns), -1)
        first = 0
        for span in self.spans:
            here = (at_ns >= span.start_ns) & (at_ns <= span.end_ns)
            since_start_ns = at_ns[here] - span.start_ns
            out[here] = first + since_start_ns // span.block_ns
            first += span.blocks
        return out

    def count(self, at_ns: Numbers, each: Numbers | int = 1) -> Numbers:
        """The total of `each` per block."""
        n_places = len(self.seconds) + 1
        place = self.place(at_ns) + 1  # 0: outside all holds
        amounts = np.broadcast_to(each, len(place))
        totals = np.bincount(place, amounts, n_places)
        return totals[1:]

    def add(self, piece: EventChunk) -> None:
        for gaps in self.gaps:
            gaps.add(piece)
        chunk = piece.chunk
        self.tokens += self.count(chunk.at_ns, chunk.tokens)

    def sides(self, table: RecordTable) -> dict[str, Side]:
        """The figures of the level, by metric."""
        out: dict[str, Side] = {}
        pooled = pool_gaps(self.gaps)
        gaps = _GapsInBlocks.of(pooled)
        for name, q in QUANTILES.items():
            for key in OF_REQUESTS:
                latency = self._request_latency(table, key, q)
                if latency:
                    out[f"{key}_{name}"] = latency
            if pooled.n:
                out[f"itl_{name}"] = latency_side(q, gaps.ns, gaps.blocks, gaps.counts)
        out["output_tokens_per_s"] = self._rate_side(self.tokens)
        out["requests_per_s"] = self._rate_side(self._requests(table))
        errors = self._errors(table)
        if errors:
            out[ERROR_SHARE] = errors
        return out

    def _request_latency(self, table: RecordTable, key: str, q: float) -> Side | None:
        """A quantile of the requests that were sent in the holds; None: there are none."""
        # A backlog that grows makes waits grow for as long as the level is held: their quantiles
        # would be figures of its length. How fast an answer comes, once begun, is not.
        if self.unstable and key != "tpot":
            return compare.INFINITE
        seen = OF_REQUESTS[key](table)
        # Requests that were sent together met the same server: a block has those sent in it.
        place = self.place(table.sent_ns[seen.row])
        here = place >= 0
        if not here.any():
            return None
        return latency_side(q, seen.ns[here], place[here])

    def _requests(self, table: RecordTable) -> Numbers:
        """Requests per block: those sent, if a schedule sends them; else those that ended well."""
        if self.by_schedule:
            return self.count(table.sent_ns[table.outcome != DROPPED])
        return self.count(table.done_ns[table.outcome == OK])

    def _rate_side(self, amounts: Numbers) -> Side:
        return compare.rate_side(amounts, self.seconds, self.in_flight, len(self.spans))

    def _errors(self, table: RecordTable) -> Side | None:
        """The share of failures among the requests that ended; None: none ended."""
        ended_ns = table.done_ns[table.outcome != OPEN]
        ended = self.count(ended_ns).sum()
        if not ended:
            return None
        failed_ns = table.done_ns[failed_requests(table)]
        failed = self.count(failed_ns).sum()
        return compare.share_side(float(failed), float(ended))


class _GapsInBlocks(NamedTuple):
    """One value per histogram bin and block."""

    ns: Numbers
    blocks: Numbers
    counts: Numbers

    @classmethod
    def of(cls, gaps: GapCounter) -> _GapsInBlocks:
        """Tokens that failed requests did not deliver are one infinite value per block."""
        histogram = gaps.histograms["ns"]
        blocks, bins, counts = histogram.cells
        _, _, means_ns = histogram.totals
        n_blocks = len(gaps.lost)
        infinite = np.full(n_blocks, np.inf)
        return cls(
            np.append(means_ns[bins], infinite),
            np.append(blocks, np.arange(n_blocks)),
            np.append(counts, gaps.lost).astype(np.float64),
        )


def _in_blocks(table: RecordTable, window: Window) -> BlockedWindow:
    """The measured window of a hold."""
    length_ns = window.end_ns - window.settled_ns
    block_ns = _block_ns(requests_in_window(table, window), length_ns)
    return BlockedWindow(window.settled_ns, window.end_ns, block_ns)


def _block_ns(table: RecordTable, length_ns: int) -> int:
    """At least one lifetime; longer ones would be too few for Holm's small p-values."""
    length_ns = max(length_ns, 1)
    lifetimes = length_ns / max(lifetime_ns(table), 1)
    n_blocks = int(np.clip(lifetimes, MIN_BLOCKS, MAX_BLOCKS))
    rounded_up_ns = -(-length_ns // n_blocks)
    # A window's last instant lies in it. Without one more that would begin a block of its own.
    return rounded_up_ns + 1


def _block_seconds(span: BlockedWindow) -> Floats:
    """The length of each block: the last one may be shorter."""
    past_end_ns = span.end_ns + 1
    starts_ns = np.arange(span.start_ns, past_end_ns, span.block_ns)
    edges_ns = np.append(starts_ns, past_end_ns)
    return np.diff(edges_ns) / SECOND


def _is_unstable(table: RecordTable, window: Window) -> bool:
    _, sentence = backlog_growth(table, window)
    return sentence != ""


def level_figures(
    recorded: RecordSource, windows: Sequence[Window], plan: SearchPlan, *, searched: bool
) -> Sides:
    """The figures of each level, pooled over its holds, and the knee if one was searched."""
    holds: dict[int, list[Window]] = {}
    for window in sorted(windows, key=lambda window: window.settled_ns):
        holds.setdefault(window.load.count, []).append(window)
    totals = {count: BlockTotals(recorded, held) for count, held in holds.items()}
    known: dict[Window, RecordsAsOf] = {}
    judged: dict[Window, EvidenceCounter] = {}
    if searched:
        for window in windows:
            known[window] = RecordsAsOf(recorded, window.settled_ns, window.end_ns)
            judged[window] = EvidenceCounter(known[window].table, window, plan.slos)
    # Tokens are on disk: one pass serves the figures and the knee.
    scan(recorded, [*totals.values(), *judged.values()])

    sides: Sides = {}
    for count, of_level in totals.items():
        sides[plan.unit.number(count)] = of_level.sides(recorded.table)
    evidence = []
    for window, counter in judged.items():
        evidence.append(gather_evidence(known[window], window, plan.slos, counter))
    knee = _knee_side(evidence, plan)
    if knee:
        sides[0] = {KNEE: knee}
    return sides


def _knee_side(evidence: Sequence[Evidence], plan: SearchPlan) -> Side | None:
    """None: no SLO or no level to estimate it from."""
    if not plan.slos:
        return None
    levels = fit_levels(evidence, plan.slos, plan.max_errors)
    if not levels:
        return None
    decided = ends_decided(plan, levels)
    crossing = fit_crossing(levels, plan.slos, plan.max_errors, plan.seed, decided=decided)
    return compare.knee_side(crossing, plan.unit)


def common_pairs(a: Sides, b: Sides, unit: LoadUnit = CONCURRENT) -> list[Pair]:
    """The figures that both runs have: the knee first, then level by level."""
    pairs = []
    for load in sorted(a.keys() & b.keys()):
        of_b = b[load]
        for metric, side_a in a[load].items():
            if metric in of_b:
                pairs.append(Pair(metric, load, side_a, of_b[metric], unit))
    return pairs


def compare_folders(a: Path, b: Path, tolerance: float) -> Comparison:
    """Compare B with A, the baseline. Raises RunFolderError; ConfigError if no level is common."""
    run_a = read_run(a)
    run_b = read_run(b)
    plan = search_plan(run_a)
    search_plan(run_b)  # raises if it cannot be read
    unit = levels_unit(run_a)
    unit_b = levels_unit(run_b)
    if unit.load is not unit_b.load:
        raise ConfigError(
            f"{a} has levels of {unit.short_many} and {b} of {unit_b.short_many}: expected two "
            "runs of one kind; try the reports of both, side by side."
        )
    sides_a = _read(run_a, plan)
    sides_b = _read(run_b, plan)
    pairs = common_pairs(sides_a, sides_b, unit)
    if not pairs:
        raise ConfigError(
            f"{a} and {b} have no level in common: found valid levels of "
            f"{_levels_held(sides_a)} and {_levels_held(sides_b)} {unit.short_many}, expected one "
            "that both held, or two knees; try `vllm-harness run` with one of them."
        )
    unlike = _unlike(_settings(run_a), _settings(run_b))
    differences = compare.compare(pairs, tolerance, plan.max_errors)
    return Comparison(str(a), str(b), tolerance, unlike, differences)


def check_levels(baseline: Path, loads: Sequence[Load]) -> None:
    """Whether the baseline held one of these levels, so that a run of them can be compared.

    Raises ConfigError.
    """
    run = read_run(baseline)
    search_plan(run)  # raises if it cannot be read
    held = {entry.window.load for entry in logged_levels(run) if not entry.invalid}
    if held.isdisjoint(loads):
        asked = " and ".join(map(str, loads))
        levels = ", ".join(sorted(map(str, held), key=len)) or "none"
        raise ConfigError(
            f"--baseline is {baseline}, which held {levels}: expected one of the levels asked for "
            f"({asked}); try the level of the baseline, or make a baseline of {asked}."
        )


def _levels_held(sides: Sides) -> list[float]:
    return sorted(load for load in sides if load)


def _unlike(settings_a: dict[str, str], settings_b: dict[str, str]) -> dict[str, tuple[str, str]]:
    """What differs, as it is in A and in B; "?" where a run does not say."""
    unlike = {}
    for name in settings_a | settings_b:
        in_a = settings_a.get(name, "?")
        in_b = settings_b.get(name, "?")
        if in_a != in_b:
            unlike[name] = (in_a, in_b)
    return unlike


class MeasuredRun(NamedTuple):
    """The figures of a run of a setting."""

    sides: Sides
    own_level: float  # 0: none

    @property
    def own(self) -> dict[str, Side]:
        """Those of the whole run and of its own level."""
        return self.sides.get(0, {}) | self.sides.get(self.own_level, {})


class MeasuredSettings(NamedTuple):
    """What the runs of settings showed, by the names of those that have any."""

    runs: dict[str, list[MeasuredRun]]
    unit: LoadUnit
    max_errors: float

    def own_sides(self) -> dict[str, dict[str, Side]]:
        """Each setting's figures at its own level, over all of its runs."""
        return {name: mean_sides([run.own for run in runs]) for name, runs in self.runs.items()}


def measured_settings(settings: Sequence[Setting]) -> MeasuredSettings:
    """Read all runs; says in each setting what its levels count, or why it has no figures."""
    measured: dict[str, list[MeasuredRun]] = {}
    plan: SearchPlan | None = None
    unit = CONCURRENT
    for setting in settings:
        runs = [read_run(run) for run, code in setting.runs.items() if code in MEASURED]
        if not runs:
            setting.failure = _why_invalid(setting) or setting.failure
            continue
        # All are judged by the SLOs of the first run.
        plan = plan or search_plan(runs[0])
        unit = levels_unit(runs[0])
        setting.unit = unit.short_many
        measured[setting.name] = [_measured_run(run, plan) for run in runs]
    return MeasuredSettings(measured, unit, plan.max_errors if plan else 0)


def _measured_run(run: Run, plan: SearchPlan) -> MeasuredRun:
    return MeasuredRun(_read(run, plan), _own_level(read_result(run.path) or Result()))


def compare_settings(settings: Sequence[Setting], tolerance: float) -> list[Comparison]:
    """Every two settings, each by all of its runs; fills in each one's own figures.

    These are its knee and the figures at its own level: at the knee, or of given levels the
    fastest. All differences are one family: of many settings, none is found better by chance.
    """
    measured = measured_settings(settings)
    sides = measured.own_sides()
    for setting in settings:
        setting.figures |= figures_of(sides.get(setting.name, {}))
    # Each setting has a level of its own, so its figures stand together as those of level 0.
    return compare_in_pairs(sides, 0, measured, tolerance)


def compare_in_pairs(
    sides: Mapping[str, dict[str, Side]], load: float, measured: MeasuredSettings, tolerance: float
) -> list[Comparison]:
    """Every two of these at a load, as one family."""
    pairs = {}
    for a, b in combinations(sides, 2):
        pairs[a, b] = common_pairs({load: sides[a]}, {load: sides[b]}, measured.unit)
    return _as_one_family(pairs, tolerance, measured.max_errors)


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


def mean_sides(runs: Sequence[dict[str, Side]]) -> dict[str, Side]:
    """Each figure over the runs that have it."""
    means = {}
    for metric in dict.fromkeys(chain.from_iterable(runs)):
        sides = [run[metric] for run in runs if metric in run]
        means[metric] = compare.mean_side(metric, sides)
    return means


def figures_of(sides: dict[str, Side]) -> dict[str, tuple[float, ...]]:
    """Each one's value and 95% interval, in its unit."""
    figures: dict[str, tuple[float, ...]] = {}
    for metric, side in sides.items():
        low_point, high_point = side.bounds(compare.Z95)
        low = compare.in_unit(metric, low_point)
        high = compare.in_unit(metric, high_point)
        figures[metric] = (side.value, low, high)
    return figures


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
    kind = kind_of_run(run)
    reasons = {}
    levels = RunTokenStats(run, windows, plan.slos, run.server).levels
    for window, level in levels.items():
        # As when its result was made: users of Locust may pause, and servers of a drill may die.
        if kind.has_phases or not kind.decides:
            late = ""
            if kind.has_phases:
                late = send_delay_sentence(run.table, window.start_ns, window.end_ns, plan.slos)
            gaps = level.tokens.gaps
            reasons[window] = late or instrument_sentence(level.known, window, plan.slos, gaps)
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
    gpu = run.info.get("gpu") or {}
    gpus = gpu.get("gpus") or []
    settings: dict[str, Any] = {}
    for name in ("model", "version", "embedded", "api", "flags"):
        settings[name] = server.get(name)
    settings["GPUs"] = [gpu.get("name") for gpu in gpus]
    settings["workload"] = drive.get("workload")
    settings["SLOs"] = config.get("slos")
    settings["arrivals"] = drive.get("arrivals") or "as answers end"
    settings["client"] = {name: client.get(name) for name in ("cpu", "usable_cores")}
    texts = {}
    for name, value in flat(settings).items():
        texts[name.replace(".", " ")] = str(value)
    return texts
