"""From a run folder to its results: the same code right after the run and a year later.

Nothing here reads a server or a clock. The search is replayed on the records, so result.json always
agrees with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from harness.compare.compare_folders import compare_folders
from harness.core.states import Purpose, Status, Verdict
from harness.core.typed_json import from_json
from harness.diagnosis.audit import KV_BLOCK_TOKENS
from harness.diagnosis.client_host import host_figures
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
from harness.metrics.result import Gate, Knee, Level, Proof, Result, Target
from harness.metrics.slo import Slo, check_slos
from harness.records import names
from harness.records.folder_reader import Run, check_folder, read_run
from harness.records.folder_writer import RunFolder
from harness.records.json_files import dumps, read_json
from harness.records.record_table import OUTCOMES
from harness.search.confirm import PROMISED, confirmed, searched
from harness.search.explain_knee import (
    bottleneck,
    invalid_reason,
    result_levels,
    shared_prompt_tokens,
)
from harness.search.held_levels import DRILL, LOCUST, judge_given_levels
from harness.search.knee_curve import curve_slos, judged_by, knee_curve, steepness
from harness.search.knee_estimate import estimate_knee, knee_result, slo_results
from harness.search.locust_levels import (
    AskedUsers,
    asked_users,
    level_line,
    unheld_sentence,
    users_pause,
)
from harness.search.next_level import Done, SearchPlan
from harness.search.power import plateau_knee, power_knee
from harness.search.recorded_plan import level_unit, levels_unit, logged_levels, search_plan
from harness.search.replay import Replay, RunTokenStats, replay
from harness.server.api_versions import is_simulator
from harness.server.max_num_seqs import max_num_seqs

if TYPE_CHECKING:
    from harness.compat.tool_comparison import ToolComparison
    from harness.drill.plan import Drill
    from harness.metrics.evidence import Window
    from harness.metrics.token_gaps import WindowGaps

Json = dict[str, Any]
KNEE: Final = "knee"  # the kind of a run that searches for the knee
SWEEP: Final = "sweep"  # the kind of one that holds several given levels

EXIT_OF: Final = {
    Status.found: EXIT_OK,
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
    if (info.get("config") or {}).get("kind") != LOCUST:
        return
    lines = [dumps(level_line(level)) + b"\n" for level in logged_levels(read_run(folder.path))]
    folder.write(names.LEVELS, b"".join(lines))


def compute(run: Run, compat: Sequence[str] = (), slos: Sequence[Slo] = ()) -> Results:
    """Compute all results in one pass over the tokens. Raises RunFolderError.

    `compat`: further tools whose figures are added. `slos`: judge its levels by these instead.
    """
    own, config = search_plan(run), run.info["config"]
    plan = replace(own, slos=tuple(slos)) if slos else own
    kind, drive = str(config.get("kind") or ""), config.get("drive") or {}
    ended = read_json(run.path / names.ENDED) or {"interrupted": True}
    logged = logged_levels(run)
    windows = [entry.window for entry in logged]
    asked = dict.fromkeys([*(config.get("compat") or ()), *compat])
    comparison = _comparison(run, windows) if asked else None
    also = comparison.visitors if comparison else ()
    wanted = (*own.slos, *curve_slos(plan.slos)) if kind == KNEE else (*own.slos, *slos)
    counted = RunTokenStats(run, windows, wanted, run.server, also)
    block_tokens = (run.info.get("server") or {}).get("block_size") or KV_BLOCK_TOKENS
    shared_of = (shared := shared_prompt_tokens(drive)), int(block_tokens)
    drill = drill_of(run) if kind == DRILL and logged else None

    audit = partial(_audit, run=run, plan=plan, counted=counted, drill=drill, shared=shared)
    replayed = replay(own, logged, counted, searched=kind == KNEE, audit=audit)
    replayed = judged_by(plan, replayed, counted, searched=kind == KNEE) if slos else replayed
    mix = [row["name"] for row, _ in (drive.get("workload") or {}).get("rows") or ()]
    levels = result_levels(replayed.levels, counted, run, plan, shared_of, mix=mix)
    windows = [s.window for s in replayed.levels if not s.invalid]
    windows = windows or [s.window for s in replayed.levels]  # the headline says if none is valid
    gave_up = ended.get("status") == Status.target_failed and replayed.levels
    error = commonest_error(run, replayed.levels[-1].window.chosen_ns if gave_up else 0)
    base = Result(
        command=kind,
        unit=level_unit(drive.get("workload") or {}),
        target=target_of_run(run),
        client=ended.get("figures") or {},
        lacking=tuple(missing_figures(run.server)),
        invalid_reason=ended.get("invalid") or why_failed(ended, replayed, error),
        commonest_error=error,
        interrupted=bool(ended.get("interrupted")),
        damage=(*run.damage.sentences(), *(ended.get("lost") or ())),
        replay_differences=tuple(replayed.differences),
        proof=from_json(Proof, proof) if (proof := read_json(run.path / names.PROOF)) else None,
        compat={name: comparison.entry(name, windows) for name in asked} if comparison else None,
    )
    base = _of_locust(base, run, replayed, asked_users(ended))
    if kind in (KNEE, SWEEP) and not plan.rate_step_per_s:  # they divide by a number of users
        used = [s.evidence for s in replayed.levels if not s.invalid]
        base = replace(base, power=power_knee(used, plan.seed), plateau=plateau_knee(used))
    if kind == KNEE:
        unit = levels_unit(run)
        result = _with_knee(base, plan, replayed, levels, counted, ended=ended, unit=unit)
    else:
        status = "" if ended.get("invalid") else str(ended.get("status") or "")
        plan = replace(plan, slos=()) if kind == DRILL else plan  # its SLOs have spans of their own
        result = judge_given_levels(base, plan, levels, counted, status)
    status = Status.interrupted if base.interrupted else result.status
    result = replace(result, status=status)
    if kind == DRILL:
        gates = expectations(run, drill, result, ended.get("missing") or {})
    else:
        gates = [] if slos else [*result.gates, *evaluate_gates(result, run.path, config)]
    # Gates decide the exit code only if the search has an answer.
    code = exit_code(status, gates, EXIT_OF[status])
    result = replace(result, exit_code=code, gates=tuple(gates))
    if code == MeasurementInvalid.exit_code and not result.invalid_reason:
        result = replace(result, invalid_reason=why_unusable(result))
    return Results(run, result, counted.gaps)


def _audit(
    window: Window,
    *,
    run: Run,
    plan: SearchPlan,
    counted: RunTokenStats,
    drill: Drill | None,
    shared: int,
) -> str:
    """Why a given level is invalid, or "". `shared`: tokens that all prompts begin with."""
    level = counted.levels[window]
    gaps, host = level.tokens.gaps, host_figures(run.host, window.settled_ns, window.end_ns)
    if drill is not None:  # servers that die count no tokens
        return phase_reason(drill, window, level.known, run.table, gaps=gaps, host=host)
    if run.info["config"].get("kind") == LOCUST:  # users may pause
        return instrument_sentence(level.known, window, plan.slos, gaps, host=host)
    known, slos = level.known, plan.slos
    return invalid_reason(window, known, run.server, slos, shared=shared, counted=level, host=host)


def _of_locust(base: Result, run: Run, replayed: Replay, asked: Sequence[AskedUsers]) -> Result:
    """What is said of users that Locust decides about: their pauses, and numbers not held."""
    if base.command != LOCUST:
        return base
    windows = [level.window for level in replayed.levels]
    unheld = unheld_sentence(asked, len(windows))
    unit = "user" if users_pause(run.table, windows) else base.unit
    return replace(base, unit=unit, unheld=unheld)


def _comparison(run: Run, windows: Sequence[Window]) -> ToolComparison:
    from harness.compat.tool_comparison import ToolComparison  # noqa: PLC0415 - only then

    return ToolComparison(run.table, [(w.settled_ns, w.end_ns) for w in windows])


def _with_knee(
    base: Result,
    plan: SearchPlan,
    replayed: Replay,
    levels: list[Level],
    counted: RunTokenStats,
    *,
    ended: Json,
    unit: str,
) -> Result:
    """The result of a search. How the live run ended takes precedence over the replay."""
    done = replayed.done
    if done.status == Status.invalid and any(not level.invalid for level in replayed.levels):
        done = Done(Status.inconclusive, None)  # what the other levels show stands
    if base.invalid_reason:
        failed_hard = ended.get("status") == Status.target_failed and not ended.get("invalid")
        done = Done(Status.target_failed if failed_hard else Status.invalid, None)
    held = searched(replayed.levels)
    found = estimate_knee(plan, held, done)
    own = [level for level in levels if level.purpose != Purpose.hold]  # without --confirm's
    knee = replace(knee_result(plan, found, own, counted), unit=unit)
    if done.status != Status.invalid:
        every = (knee_curve(plan, slo, held, own, counted) for slo in curve_slos(plan.slos))
        curves = tuple(curve for curve in every if curve.points)
        knee = replace(knee, curves=curves, **steepness(plan, found, held))
    at = found.users if found.users is not None else found.lo
    none_met = (Status.not_reached, Status.target_failed, Status.invalid)  # no limit was met
    return replace(
        base,
        status=found.status,
        slos=tuple(slo_results(plan, found, own)),
        knee=knee,
        gates=tuple(confirmed(plan, counted, replayed.levels) if found.status in PROMISED else ()),
        levels=tuple(levels),
        bottleneck=None
        if found.status in none_met
        else bottleneck(plan.slos, plan.load_of(at), own, base.target.max_num_seqs, unit),
    )


def target_of_run(run: Run) -> Target:
    """The server, from run.json and its samples."""
    server = run.info.get("server") or {}
    flags = server.get("flags") or {}
    versions = dict(run.info.get("versions") or {})
    if server.get("version"):
        versions["server"] = str(server["version"])
    simulated = bool(server.get("embedded")) or is_simulator(versions.get("server", ""))
    return Target(
        url=str(server.get("url") or ""),
        model=str(server.get("model") or ""),
        simulated=simulated,
        gpu=str(flags.get("gpu") or "") if simulated else "",
        versions={name: str(text) for name, text in versions.items()},
        flags=flags,
        max_num_seqs=max_num_seqs(server, run.server),
    )


def why_failed(ended: Json, replayed: Replay, error: str) -> str:
    """Why the run ended early: no valid level, or the most common error of the failed requests."""
    if ended.get("status") not in (Status.invalid, Status.target_failed) or not replayed.levels:
        return ""
    last = replayed.levels[-1].window
    if len(searched(replayed.levels)) not in (0, len(replayed.levels)):
        return ""  # while --confirm held the answer, which the search had found
    if ended["status"] == Status.invalid and any(not level.invalid for level in replayed.levels):
        return ""  # the others may be used
    users = f"{last.rate_per_s:g} requests/s" if last.rate_per_s else f"{last.users} users"
    if why := replayed.levels[-1].invalid:
        return f"the result depends on the level of {users}, which is invalid: {why}."
    error_text = f"most often with {error!r}" if error else "and none ended well"
    return (
        f"more than half of the requests failed at {users}, {error_text}: expected a server "
        "that answers; check that it still runs and read its log, then try again."
    )


def why_unusable(result: Result) -> str:
    """Why no figure of a run may be used, where its levels say it and nothing else does."""
    if not result.levels:
        return "no level was measured: the load ended before one had settled."
    first, n = result.levels[0], len(result.levels)
    where, why = result.loads_text(first), first.reason.rstrip(".")
    if n == 1:
        return f"{why} (at {where})."
    return f"none of its {n:,} levels may be used, the first ({where}) because {why}."


def commonest_error(run: Run, from_ns: int) -> str:
    """The most common error of requests that failed since `from_ns`; "" if none failed."""
    failed_rows = np.flatnonzero(failed_requests(run.table) & (run.table.done_ns >= from_ns))
    counts = Counter(run.errors[i] or OUTCOMES[run.table.outcome[i]].value for i in failed_rows)
    return counts.most_common(1)[0][0] if counts else ""


def write_results(path: Path, compat: Sequence[str] = (), slos: Sequence[Slo] = ()) -> Results:
    """Compute and write result.json and requests.parquet; by other `slos` nothing is written.

    The record files are read twice: first for the requests, which go straight to
    requests.parquet, then, with the windows known, for the tokens in them. Raises RunFolderError,
    and ConfigError where the SLOs contradict each other.
    """
    from harness.run.run_frames import parquet_writer  # noqa: PLC0415 - 0.2 s, and only here

    check_folder(path)
    if slos:
        check_slos(slos, inf)
        if (file := path / names.DRILL).exists():
            raise ConfigError(
                f"--slo is given for a drill, {path}: expected a search, run or sweep; try another "
                f"[[expect]] in {file}."
            )
        return compute(read_run(path), compat, slos)
    folder = RunFolder(path)
    write_locust_levels(folder)
    with parquet_writer(folder) as write:
        run = read_run(path, write)
    results = compute(run, compat)
    folder.write_json(names.RESULT, results.result)
    return results


# A search with another status has no knee to compare with.
ANSWERED: Final = (
    Status.found,
    Status.not_reached,
    Status.inconclusive,
    Status.slo_failed_at_min,
)
CODES: Final = {
    Verdict.met: EXIT_OK,
    Verdict.inconclusive: EXIT_INCONCLUSIVE,
    Verdict.missed: EXIT_SLO_MISSED,
}


def drill_of(run: Run) -> Drill:
    """What a drill was judged by. Raises RunFolderError, ConfigError."""
    told = run.info["config"].get("drill") or {}
    file = run.path / names.DRILL
    if not file.is_file():
        raise RunFolderError(f"{file} is gone: expected what the drill is judged by; try a backup.")
    return parse_drill(file.read_text(errors="replace"), str(file), told.get("knee"))


def expectations(
    run: Run, drill: Drill | None, result: Result, missing: Mapping[str, int]
) -> list[Gate]:
    """Judge what a drill expects, by the phases that may be used; [] if it did not end well."""
    if drill is None or result.status != Status.measured:
        return []
    levels = result.levels
    invalid = {
        phase: level.reason
        for phase, level in zip(drill.phases, levels, strict=False)
        if not level.usable
    }
    began_ns, end_ns = levels[0].chosen_ns, levels[-1].judged_ns
    lost = sum(missing.values())
    return judge_drill(
        drill, began_ns, run, run.server, missing=lost, until_ns=end_ns, invalid=invalid
    )


def evaluate_gates(result: Result, folder: Path, config: Mapping[str, Any]) -> list[Gate]:
    """Evaluate the gates in run.json. Raises RunFolderError, ConfigError."""
    users, baseline = config.get("at_least"), config.get("baseline")
    if result.knee is None or result.status not in ANSWERED:
        return []
    gates = [at_least_gate(result.knee, users)] if users else []
    if baseline:
        gates.append(baseline_gate(Path(baseline), folder, float(config.get("tolerance") or 0)))
    return gates


def baseline_gate(baseline: Path, folder: Path, tolerance: float) -> Gate:
    """The result of `vllm-harness compare BASELINE FOLDER` as a gate."""
    name, limit = f"no worse than {baseline}", f"by more than {tolerance:.1%}"
    found = compare_folders(baseline, folder, tolerance)
    # A difference beyond the tolerance decides; the first one is named.
    if worse := [one for one in found.differences if one.beyond]:
        first, more = worse[0], len(worse) - 1
        what = first.metric + (f" at {first.users:,} {first.unit}" if first.users else "")
        others = f", and {more} more" if more else ""
        sentence = f"Worse than {baseline} {limit}: {what} {first.change:+.1%}{others}."
        return Gate(name, Verdict.missed, sentence)
    if found.exit_code != EXIT_OK:
        sentence = f"Too little was measured to compare with {baseline}; try a longer --budget."
        return Gate(name, Verdict.inconclusive, sentence)
    return Gate(name, Verdict.met, f"Nothing is shown to be worse than {baseline} {limit}.")


def at_least_gate(knee: Knee, users: int) -> Gate:
    """Met if a level at or above `users` passed, missed if one at or below `users` failed."""
    name, asked = f"holds at least {users}", f"asked for at least {users:,}"
    if (knee.holds or 0) >= users:
        return Gate(name, Verdict.met, f"Holds {knee.holds:,} {knee.unit}; {asked}.")
    if knee.fails_by is not None and knee.fails_by <= users:
        return Gate(name, Verdict.missed, f"Fails by {knee.fails_by:,} {knee.unit}; {asked}.")
    best = "" if knee.estimate is None else f" (best estimate {knee.estimate:,})"
    return Gate(
        name,
        Verdict.inconclusive,
        f"No level at or above {users:,} {knee.unit} passed, and no level at or below failed"
        f"{best}; try a longer --budget.",
    )


def exit_code(status: Status, gates: Sequence[Gate], otherwise: int) -> int:
    """The exit code of the worst gate; `otherwise` without gates or without a knee."""
    if not gates or status not in (*ANSWERED, Status.measured):
        return otherwise
    return max(CODES[gate.verdict] for gate in gates)
