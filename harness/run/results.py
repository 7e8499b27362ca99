"""From a run folder to its results: the same code right after the run and a year later.

Nothing here reads a server or a clock. The search is replayed on the records, so result.json always
agrees with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from harness.compare.compare_folders import compare_folders
from harness.core.extras import has_extra
from harness.core.freed_memory import give_back
from harness.core.load import THINKING
from harness.core.run_kinds import kind_of
from harness.core.states import Purpose, Status, Verdict
from harness.core.typed_json import from_json
from harness.diagnosis.audit import KV_BLOCK_TOKENS
from harness.diagnosis.client_host import host_figures, with_load_processes
from harness.diagnosis.instrument import instrument_sentence
from harness.diagnosis.server_window import missing_figures
from harness.drill.drill_file import parse_drill
from harness.drill.phases import phase_reason
from harness.drill.verdicts import judge_drill
from harness.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_SLO_MISSED,
    ConfigError,
    MeasurementInvalid,
    RunFolderError,
)
from harness.metrics.metrics import failed_requests
from harness.metrics.numbers import percent_text
from harness.metrics.result import (
    PARALLEL_FLAGS,
    Gate,
    Knee,
    KneeCurve,
    Level,
    Proof,
    Result,
    Target,
    gpus_by_flags,
)
from harness.metrics.slo import Slo, check_slos
from harness.records import names
from harness.records.folder_reader import Run, check_folder, read_run
from harness.records.folder_writer import RunFolder
from harness.records.json_files import dumps, read_json
from harness.records.record_table import OUTCOMES
from harness.search.confirm import confirmed, searched
from harness.search.explain_knee import (
    bottleneck,
    invalid_reason,
    result_levels,
    shared_prompt_tokens,
)
from harness.search.held_levels import judge_given_levels
from harness.search.knee_curve import curve_slos, judged_by, knee_curve, steepness
from harness.search.knee_estimate import PROMISED, estimate_knee, knee_result, slo_results
from harness.search.locust_levels import (
    asked_users,
    level_line,
    unheld_sentence,
    users_pause,
)
from harness.search.next_level import Done, SearchPlan
from harness.search.power import plateau_knee, power_knee
from harness.search.recorded_plan import (
    kind_of_run,
    logged_levels,
    search_plan,
    unit_of_workload,
)
from harness.search.replay import LoggedLevel, Replay, RunTokenStats, replay
from harness.server.api_versions import is_simulator
from harness.server.max_num_seqs import max_num_seqs

if TYPE_CHECKING:
    from harness.compat.tool_comparison import ToolComparison
    from harness.core.run_kinds import RunKind
    from harness.drill.plan import Drill
    from harness.metrics.evidence import Window
    from harness.metrics.result import Bottleneck
    from harness.metrics.token_gaps import WindowGaps
    from harness.search.knee_estimate import KneeEstimate
    from harness.search.level_state import HeldLevel

Json = dict[str, Any]
NO_LIMIT_MET: Final = (Status.not_reached, Status.target_failed, Status.invalid)

EXIT_OF: Final = {
    Status.found: EXIT_OK,
    Status.holds: EXIT_OK,
    Status.not_reached: EXIT_OK,
    Status.met: EXIT_OK,
    Status.measured: EXIT_OK,
    Status.slo_failed_at_min: EXIT_SLO_MISSED,
    Status.missed: EXIT_SLO_MISSED,
    Status.target_failed: EXIT_SLO_MISSED,
    Status.invalid: MeasurementInvalid.exit_code,
    Status.inconclusive: EXIT_INCONCLUSIVE,
    Status.interrupted: EXIT_INTERRUPTED,
}


class Results(NamedTuple):
    """A run, its result, and the gaps between tokens that reports draw."""

    run: Run
    result: Result
    gaps: WindowGaps


def write_locust_levels(folder: RunFolder) -> None:
    """Write levels.jsonl of a test that Locust decided about, from its records so far.

    So its frames have levels and phases.
    """
    info = read_json(folder.path / names.RUN) or {}
    config = info.get("config") or {}
    if kind_of(str(config.get("kind") or ""), str(folder.path)).decides:
        return
    levels = logged_levels(read_run(folder.path))
    lines = [dumps(level_line(level)) + b"\n" for level in levels]
    folder.write(names.LEVELS, b"".join(lines))


class _Recorded(NamedTuple):
    """What a run folder says of its run, and the SLOs that it is judged by now."""

    run: Run
    kind: type[RunKind]
    config: Json  # of run.json
    ended: Json  # ended.json: how the live run ended
    live_plan: SearchPlan  # with the SLOs of the live run
    plan: SearchPlan  # with the SLOs that its levels are judged by now
    by_other_slos: bool  # these were given after the run
    tools: tuple[str, ...]  # whose figures are added

    @property
    def drive(self) -> Json:
        """The options of the load processes."""
        return self.config.get("drive") or {}

    @property
    def workload(self) -> Json:
        return self.drive.get("workload") or {}

    @property
    def is_search(self) -> bool:
        return self.kind.searches


def compute(run: Run, compat: Sequence[str] = (), slos: Sequence[Slo] = ()) -> Results:
    """Compute all results in one pass over the tokens. Raises RunFolderError.

    `compat`: further tools whose figures are added. `slos`: judge its levels by these instead.
    """
    recorded = _recorded(run, compat, slos)
    logged = logged_levels(run)
    windows = [entry.window for entry in logged]
    comparison = _comparison(run, windows) if recorded.tools else None
    counted = _count_tokens(recorded, windows, comparison)
    drill = drill_of(run) if recorded.kind.has_phases and logged else None

    replayed = _replay(recorded, logged, counted, drill)
    levels = _levels(recorded, replayed, counted)

    result = _common_result(recorded, replayed)
    if comparison is not None:
        result = replace(result, compat=_compat_entries(recorded, comparison, replayed))
    if not recorded.kind.decides:
        result = _with_locusts_users(result, recorded, replayed)
    if recorded.kind.spans_loads:
        result = _with_throughput_knees(result, recorded, replayed)
    if recorded.is_search:
        result = _with_knee(result, recorded, replayed, levels, counted)
    else:
        result = _with_given_levels(result, recorded, levels, counted)
    if result.interrupted:
        result = replace(result, status=Status.interrupted)
    result = _with_gates(result, recorded, drill)
    gaps = counted.gaps
    del counted, replayed, levels  # the tables of the levels, before the reports are made
    give_back()
    return Results(run, result, gaps)


def _recorded(run: Run, compat: Sequence[str], slos: Sequence[Slo]) -> _Recorded:
    live_plan = search_plan(run)  # first: it says what a folder without a plan lacks
    plan = live_plan
    if slos:
        plan = replace(live_plan, slos=tuple(slos))

    # A run that was killed has no ended.json.
    ended = read_json(run.path / names.ENDED) or {"interrupted": True}

    config = run.info["config"]
    live_tools = config.get("compat") or ()
    tools = dict.fromkeys([*live_tools, *compat])
    return _Recorded(
        run=run,
        kind=kind_of_run(run),
        config=config,
        ended=ended,
        live_plan=live_plan,
        plan=plan,
        by_other_slos=bool(slos),
        tools=tuple(tools),
    )


def _comparison(run: Run, windows: Sequence[Window]) -> ToolComparison:
    from harness.compat.tool_comparison import ToolComparison  # noqa: PLC0415 - only then

    spans_ns = [(window.settled_ns, window.end_ns) for window in windows]
    return ToolComparison(run.table, spans_ns)


def _count_tokens(
    recorded: _Recorded, windows: Sequence[Window], comparison: ToolComparison | None
) -> RunTokenStats:
    """The one pass over all tokens."""
    run = recorded.run
    # The search is replayed by the SLOs of the live run, then judged by those of now.
    counted_slos = list(recorded.live_plan.slos)
    if recorded.is_search:
        counted_slos += curve_slos(recorded.plan.slos)
    elif recorded.by_other_slos:
        counted_slos += recorded.plan.slos
    visitors = comparison.visitors if comparison is not None else ()
    return RunTokenStats(run, windows, counted_slos, run.server, visitors)


def _replay(
    recorded: _Recorded,
    logged: Sequence[LoggedLevel],
    counted: RunTokenStats,
    drill: Drill | None,
) -> Replay:
    """The levels as the live run decided about them, or judged by the SLOs given now."""

    def audit(window: Window) -> str:
        return _why_invalid(window, recorded, counted, drill)

    is_search = recorded.is_search
    replayed = replay(recorded.live_plan, logged, counted, searched=is_search, audit=audit)
    if recorded.by_other_slos:
        replayed = judged_by(recorded.plan, replayed, counted, searched=is_search)
    return replayed


def _why_invalid(
    window: Window, recorded: _Recorded, counted: RunTokenStats, drill: Drill | None
) -> str:
    """Why a level that was not audited yet is invalid, or ""."""
    run = recorded.run
    slos = recorded.plan.slos
    level = counted.levels[window]
    gaps = level.tokens.gaps
    span = (window.settled_ns, window.end_ns)
    host = with_load_processes(host_figures(run.host, *span), run.client, *span)
    if drill is not None:  # servers that die count no tokens
        return phase_reason(drill, window, level.known, run.table, gaps=gaps, host=host)
    if not recorded.kind.decides:  # users may pause
        return instrument_sentence(level.known, window, slos, gaps, host=host)
    shared = shared_prompt_tokens(recorded.drive)
    return invalid_reason(
        window, level.known, run.server, slos, shared=shared, counted=level, host=host
    )


def _levels(recorded: _Recorded, replayed: Replay, counted: RunTokenStats) -> list[Level]:
    """The levels with all their figures."""
    run = recorded.run
    server = run.info.get("server") or {}
    block_tokens = int(server.get("block_size") or KV_BLOCK_TOKENS)
    shared_prefix = (shared_prompt_tokens(recorded.drive), block_tokens)
    mix = [row["name"] for row, _ in recorded.workload.get("rows") or ()]
    return result_levels(replayed.levels, counted, run, recorded.plan, shared_prefix, mix=mix)


def _common_result(recorded: _Recorded, replayed: Replay) -> Result:
    """What is said of every run, whatever its kind."""
    run = recorded.run
    ended = recorded.ended
    failed_since_ns = 0
    if ended.get("status") == Status.target_failed and replayed.levels:
        failed_since_ns = replayed.levels[-1].window.chosen_ns
    error = commonest_error(run, failed_since_ns)
    invalid_reason = ended.get("invalid")
    if not invalid_reason:
        invalid_reason = why_failed(ended, replayed, error)

    lost = ended.get("lost") or ()
    damage = (*run.damage.sentences(), *lost)

    proof = None
    stored_proof = read_json(run.path / names.PROOF)
    if stored_proof:
        proof = from_json(Proof, stored_proof)

    unit = unit_of_workload(recorded.workload)
    lacking = missing_figures(run.server)
    return Result(
        command=recorded.kind.name,
        unit=unit.one,
        target=target_of_run(run),
        client=ended.get("figures") or {},
        lacking=tuple(lacking),
        invalid_reason=invalid_reason,
        commonest_error=error,
        interrupted=bool(ended.get("interrupted")),
        damage=damage,
        replay_differences=tuple(replayed.differences),
        proof=proof,
    )


def _compat_entries(recorded: _Recorded, comparison: ToolComparison, replayed: Replay) -> Json:
    """Other tools' figures of the valid levels; of all if none is, which the headline says."""
    windows = [level.window for level in replayed.levels if not level.invalid]
    if not windows:
        windows = [level.window for level in replayed.levels]
    return {tool: comparison.entry(tool, windows) for tool in recorded.tools}


def _with_locusts_users(base: Result, recorded: _Recorded, replayed: Replay) -> Result:
    """What is said of users that Locust decides about: their pauses, and numbers not held."""
    windows = [level.window for level in replayed.levels]
    unheld = unheld_sentence(asked_users(recorded.ended), len(windows))
    unit = THINKING.one if users_pause(recorded.run.table, windows) else base.unit
    return replace(base, unit=unit, unheld=unheld)


def _with_throughput_knees(base: Result, recorded: _Recorded, replayed: Replay) -> Result:
    """The knees by throughput alone; there are none by rate, as they divide by users."""
    if recorded.plan.unit.by_schedule:
        return base
    used = [level.evidence for level in replayed.levels if not level.invalid]
    power = power_knee(used, recorded.plan.seed)
    return replace(base, power=power, plateau=plateau_knee(used))


def _with_knee(
    base: Result,
    recorded: _Recorded,
    replayed: Replay,
    levels: list[Level],
    counted: RunTokenStats,
) -> Result:
    """The result of a search."""
    plan = recorded.plan
    done = _end_of_search(base, recorded, replayed)
    # The knee rests on the levels of the search, without those of --confirm.
    held = searched(replayed.levels)
    search_levels = [level for level in levels if level.purpose != Purpose.hold]
    estimate = estimate_knee(plan, held, done)
    knee = knee_result(plan, estimate, search_levels, counted)
    knee = replace(knee, unit=plan.unit.short_many)
    if done.status != Status.invalid:
        curves = _knee_curves(plan, held, search_levels, counted)
        rises = steepness(plan, estimate, held)
        knee = replace(knee, curves=curves, **rises)

    gates: list[Gate] = []
    if estimate.status in PROMISED:
        gates = confirmed(plan, counted, replayed.levels)

    limited_by = None
    if estimate.status not in NO_LIMIT_MET:
        limited_by = _limit_of_search(plan, estimate, search_levels, knee, base.target)

    slos = slo_results(plan, estimate, search_levels)
    return replace(
        base,
        status=estimate.status,
        slos=tuple(slos),
        knee=knee,
        gates=tuple(gates),
        levels=tuple(levels),
        bottleneck=limited_by,
    )


def _limit_of_search(
    plan: SearchPlan,
    estimate: KneeEstimate,
    levels: Sequence[Level],
    knee: Knee,
    target: Target,
) -> Bottleneck:
    """What limits the knee, or the lower end of its interval where there is no best estimate."""
    count = estimate.count
    if count is None:
        count = estimate.lo
    load = plan.unit.number(count)
    max_seqs = target.max_num_seqs
    return bottleneck(plan.slos, load, levels, max_seqs, unit=plan.unit, curves=knee.curves)


def _knee_curves(
    plan: SearchPlan,
    held: Sequence[HeldLevel],
    levels: Sequence[Level],
    counted: RunTokenStats,
) -> tuple[KneeCurve, ...]:
    """The knee at other limits, of each SLO for which it is known at one."""
    curves = []
    for slo in curve_slos(plan.slos):
        curve = knee_curve(plan, slo, held, levels, counted)
        if curve.points:
            curves.append(curve)
    return tuple(curves)


def _end_of_search(base: Result, recorded: _Recorded, replayed: Replay) -> Done:
    """How the search ended: what the live run says takes precedence over the replay."""
    ended = recorded.ended
    if base.invalid_reason:
        failed_hard = ended.get("status") == Status.target_failed and not ended.get("invalid")
        return Done(Status.target_failed if failed_hard else Status.invalid, None)
    any_valid = any(not level.invalid for level in replayed.levels)
    if replayed.done.status == Status.invalid and any_valid:
        return Done(Status.inconclusive, None)  # what the other levels show stands
    return replayed.done


def _with_given_levels(
    base: Result, recorded: _Recorded, levels: list[Level], counted: RunTokenStats
) -> Result:
    """The result of levels that were not searched for."""
    ended = recorded.ended
    status = "" if ended.get("invalid") else str(ended.get("status") or "")
    plan = recorded.plan
    if recorded.kind.has_phases:  # its SLOs have spans of their own
        plan = replace(plan, slos=())
    return judge_given_levels(base, plan, levels, counted, status)


def _with_gates(result: Result, recorded: _Recorded, drill: Drill | None) -> Result:
    """The requirements on the result, and the exit code."""
    if recorded.kind.has_phases:
        missing = recorded.ended.get("missing") or {}
        gates = expectations(recorded.run, drill, result, missing)
    elif recorded.by_other_slos:
        gates = []
    else:
        gates = [*result.gates, *evaluate_gates(result, recorded.run.path, recorded.config)]
    # Gates decide the exit code only if the search has an answer.
    code = exit_code(result, gates)
    result = replace(result, exit_code=code, gates=tuple(gates))
    if code == MeasurementInvalid.exit_code and not result.invalid_reason:
        result = replace(result, invalid_reason=why_unusable(result))
    return result


def target_of_run(run: Run) -> Target:
    """The server, from run.json and its samples."""
    server = run.info.get("server") or {}
    flags = server.get("flags") or {}
    versions = dict(run.info.get("versions") or {})
    if server.get("version"):
        versions["server"] = str(server["version"])
    server_version = versions.get("server", "")
    simulated = bool(server.get("embedded")) or is_simulator(server_version)
    gpu = ""
    if simulated:
        gpu = str(flags.get("gpu") or "")
    replicas = server.get("replicas") or [1]
    n_servers = len(replicas) + len(server.get("prefill") or ())
    url = server.get("url") or ""
    model = server.get("model") or ""
    return Target(
        url=str(url),
        model=str(model),
        simulated=simulated,
        gpu=gpu,
        versions={name: str(text) for name, text in versions.items()},
        flags=flags,
        max_num_seqs=max_num_seqs(server, run.server),
        servers=n_servers,
        gpus=gpus_of_run(run, flags, n_servers),
    )


def gpus_of_run(run: Run, flags: Mapping[str, Any], servers: int) -> int:
    """The GPUs that a run's servers use, all together; 0: not known."""
    reading = run.info.get("gpu") or {}
    seen = len(reading.get("gpus") or ()) if reading.get("of_server") else 0
    by_flags = servers * gpus_by_flags(flags)
    # A server that shows its flags shows all of them; those that were given may be a part.
    shows_flags = all(name in flags for name in PARALLEL_FLAGS)
    return by_flags if shows_flags or not seen else seen


def why_failed(ended: Json, replayed: Replay, error: str) -> str:
    """Why the run ended early: no valid level, or the most common error of the failed requests."""
    status = ended.get("status")
    levels = replayed.levels
    if status not in (Status.invalid, Status.target_failed) or not levels:
        return ""
    n_searched = len(searched(levels))
    if 0 < n_searched < len(levels):
        return ""  # while --confirm held the answer, which the search had found
    if status == Status.invalid and any(not level.invalid for level in levels):
        return ""  # the others may be used
    last = levels[-1]
    load = last.window.load
    if last.invalid:
        return f"the result depends on the level of {load}, which is invalid: {last.invalid}."
    error_text = f"most often with {error!r}" if error else "and none ended well"
    return (
        f"more than half of the requests failed at {load}, {error_text}: expected a server "
        "that answers; check that it still runs and read its log, then try again."
    )


def why_unusable(result: Result) -> str:
    """Why no figure of a run may be used, where its levels say it and nothing else does."""
    if not result.levels:
        return "no level was measured: the load ended before one had settled."
    first = result.levels[0]
    load = result.loads_text(first)
    why = first.reason.rstrip(".")
    n_levels = len(result.levels)
    if n_levels == 1:
        return f"{why} (at {load})."
    return f"none of its {n_levels:,} levels may be used, the first ({load}) because {why}."


def commonest_error(run: Run, from_ns: int) -> str:
    """The most common error of requests that failed since `from_ns`; "" if none failed."""
    table = run.table
    has_failed = failed_requests(table) & (table.done_ns >= from_ns)
    failed_rows = np.flatnonzero(has_failed).tolist()
    counts = Counter(_error_of(run, row) for row in failed_rows)
    if not counts:
        return ""
    [(commonest, _)] = counts.most_common(1)
    return commonest


def _error_of(run: Run, row: int) -> str:
    """The words of a failed request's error, else its outcome's."""
    return run.errors[row] or OUTCOMES[run.table.outcome[row]].value


def write_results(path: Path, compat: Sequence[str] = (), slos: Sequence[Slo] = ()) -> Results:
    """Compute and write result.json and requests.parquet; by other `slos` nothing is written.

    The record files are read twice: first for the requests, then, with the windows known, for the
    tokens in them. Raises RunFolderError, and ConfigError where the SLOs contradict each other.
    """
    check_folder(path)
    if slos:
        check_slos(slos, inf)
        file = path / names.DRILL
        if file.exists():
            raise ConfigError(
                f"--slo is given for a drill, {path}: expected a search, run or sweep; try another "
                f"[[expect]] in {file}."
            )
        return compute(read_run(path), compat, slos)
    folder = RunFolder(path)
    write_locust_levels(folder)
    results = compute(_run_to_parquet(folder), compat)
    folder.write_json(names.RESULT, results.result)
    return results


def _run_to_parquet(folder: RunFolder) -> Run:
    """Read the requests, which go straight to requests.parquet if it can be written."""
    if not has_extra("parquet"):
        return read_run(folder.path)
    from harness.run.run_frames import parquet_writer  # noqa: PLC0415 - 0.2 s, and an extra

    with parquet_writer(folder) as write:
        return read_run(folder.path, write)


# A search with another status has no knee to compare with.
ANSWERED: Final = (
    Status.found,
    Status.holds,
    Status.not_reached,
    Status.inconclusive,
    Status.slo_failed_at_min,
)
# As ANSWERED, of levels that were given.
JUDGED: Final = (Status.met, Status.missed, Status.measured, Status.inconclusive)
CODES: Final = {
    Verdict.met: EXIT_OK,
    Verdict.inconclusive: EXIT_INCONCLUSIVE,
    Verdict.missed: EXIT_SLO_MISSED,
}


def drill_of(run: Run) -> Drill:
    """What a drill was judged by. Raises RunFolderError, ConfigError."""
    named = run.info["config"].get("drill") or {}
    file = run.path / names.DRILL
    if not file.is_file():
        raise RunFolderError(
            f"{file} was not found: expected the file that judges the drill; try to restore it."
        )
    return parse_drill(file.read_text(errors="replace"), str(file), named.get("knee"))


def expectations(
    run: Run, drill: Drill | None, result: Result, missing: Mapping[str, int]
) -> list[Gate]:
    """Judge what a drill expects, by the phases that may be used; [] if it did not end well."""
    if drill is None or result.status != Status.measured:
        return []
    levels = result.levels
    by_phase = zip(drill.phases, levels, strict=False)
    invalid = {phase: level.reason for phase, level in by_phase if not level.usable}
    return judge_drill(
        drill,
        levels[0].chosen_ns,
        run,
        run.server,
        missing=sum(missing.values()),
        until_ns=levels[-1].judged_ns,
        invalid=invalid,
    )


def evaluate_gates(result: Result, folder: Path, config: Mapping[str, Any]) -> list[Gate]:
    """Evaluate the gates in run.json. Raises RunFolderError, ConfigError."""
    gates: list[Gate] = []
    knee = result.knee
    if knee is None:
        if result.status not in JUDGED:
            return []
    else:
        if result.status not in ANSWERED:
            return []
        at_least = config.get("at_least")
        if at_least:
            gates.append(at_least_gate(knee, at_least))
        if config.get("strict") and result.status in (Status.found, Status.holds):
            gates.append(precision_gate(knee))
    baseline = config.get("baseline")
    if baseline:
        tolerance = float(config.get("tolerance") or 0)
        gates.append(baseline_gate(Path(baseline), folder, tolerance))
    return gates


def baseline_gate(baseline: Path, folder: Path, tolerance: float) -> Gate:
    """The result of `vllm-harness compare BASELINE FOLDER` as a gate."""
    name = f"no worse than {baseline}"
    limit = f"by more than {percent_text(tolerance)}"
    try:
        comparison = compare_folders(baseline, folder, tolerance)
    except ConfigError as error:  # the levels of one, or of this run, are invalid
        return Gate(name, Verdict.inconclusive, str(error))
    # A difference beyond the tolerance decides; the first one is named.
    worse = [difference for difference in comparison.differences if difference.beyond]
    if worse:
        first = worse[0]
        what = first.metric
        if first.users:
            what += f" at {first.users:,} {first.unit}"
        n_more = len(worse) - 1
        others = f", and {n_more} more" if n_more else ""
        sentence = f"Worse than {baseline} {limit}: {what} {first.change:+.1%}{others}."
        return Gate(name, Verdict.missed, sentence)
    if comparison.exit_code != EXIT_OK:
        sentence = f"Too little was measured to compare with {baseline}; try a longer --budget."
        return Gate(name, Verdict.inconclusive, sentence)
    return Gate(name, Verdict.met, f"Nothing is shown to be worse than {baseline} {limit}.")


def at_least_gate(knee: Knee, users: int) -> Gate:
    """Met if a level at or above `users` passed, missed if one at or below `users` failed."""
    name = f"holds at least {users}"
    wanted = f"asked for at least {users:,}"
    if (knee.holds or 0) >= users:
        return Gate(name, Verdict.met, f"Holds {knee.holds:,} {knee.unit}; {wanted}.")
    if knee.fails_by is not None and knee.fails_by <= users:
        return Gate(name, Verdict.missed, f"Fails at {knee.fails_by:,} {knee.unit}; {wanted}.")
    best = "" if knee.estimate is None else f" (best estimate {knee.estimate:,})"
    return Gate(
        name,
        Verdict.inconclusive,
        f"No level at or above {users:,} {knee.unit} passed, and no level at or below failed"
        f"{best}; try a longer --budget.",
    )


def precision_gate(knee: Knee) -> Gate:
    """Met if the search reached its --precision."""
    name = f"--precision {percent_text(knee.precision)}"
    if knee.is_precise:
        return Gate(name, Verdict.met, f"The knee is known within {name}.")
    sentence = (
        f"The knee is not known within {name}, which --strict asks for; try a longer --budget."
    )
    return Gate(name, Verdict.inconclusive, sentence)


def exit_code(result: Result, gates: Sequence[Gate]) -> int:
    """That of the worst gate; without gates that of the status.

    Of levels that were given the status counts as a gate: it says whether the SLOs are met.
    """
    code = EXIT_OF[result.status]
    codes = [CODES[gate.verdict] for gate in gates]
    if result.knee is None and result.status in JUDGED:
        return max([code, *codes])
    if result.status in ANSWERED:
        return max(codes, default=code)
    return code
