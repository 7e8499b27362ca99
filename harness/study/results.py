"""From a run folder to its results: the same code right after the run and a year later.

Nothing here knows a server or a clock. The search is replayed on the records, so what result.json
says is what the records say.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_SLO_MISSED,
    MeasurementInvalid,
    RunFolderError,
)
from harness.measure.beside import beside
from harness.measure.compat import COMPAT
from harness.measure.evidence import Window
from harness.measure.metrics import failed
from harness.measure.power import plateau_knee, power_knee
from harness.measure.result import Result, Target
from harness.measure.search import Done, SearchPlan
from harness.measure.selfcheck import instrument_sentence
from harness.measure.serverside import lacking
from harness.measure.slo import Slo
from harness.measure.states import Purpose, Status
from harness.measure.table import OUTCOMES
from harness.measure.typed import to_json
from harness.runfolder import names
from harness.runfolder.jsonfiles import read_json
from harness.runfolder.parquet import write_parquet
from harness.runfolder.reader import read_run
from harness.runfolder.writer import RunFolder
from harness.server.seats import max_num_seqs
from harness.study.counted import Counted
from harness.study.entries import step_levels
from harness.study.gates import exit_code, gates_of
from harness.study.held import LOCUST, held_by_locust, judged
from harness.study.outcome import knee_of, knee_slos, locate
from harness.study.replay import Logged, Replay, replay
from harness.study.usable import shared_tokens, unusable
from harness.study.why import bottleneck

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.measure.result import Level
    from harness.runfolder.reader import Run

Json = dict[str, Any]
KNEE: Final = "knee"  # the kind of a run that searched

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


def plan_of(run: Run) -> SearchPlan:
    """The plan that run.json holds. Raises RunFolderError."""
    stored = (run.info.get("config") or {}).get("plan")
    if not isinstance(stored, dict):
        raise RunFolderError(
            f"{run.path} says nothing of its plan: expected run.json with `config.plan`, written "
            "before the load; without it the records can be read but not judged."
        )
    values = {f.name: stored[f.name] for f in fields(SearchPlan) if f.name in stored}
    values["slos"] = tuple(Slo.parse(text) for text in stored["slos"])
    return SearchPlan(**values)


def logged_steps(run: Run) -> list[Logged]:
    """Windows of steps.jsonl."""
    known = {f.name for f in fields(Window)}
    return [
        Logged(
            Window(**{k: v for k, v in row.items() if k in known} | {"purpose": purpose}),
            row.get("invalid", ""),
            row.get("decision", ""),
            row.get("audited", True),
            row.get("reason", ""),
        )
        for row in run.steps
        for purpose in (Purpose(row["purpose"]),)
    ]


def compute(run: Run, compat: Sequence[str] = ()) -> Result:
    """Everything that the records say. Raises RunFolderError.

    `compat`: tools whose figures the result has too, beside those that the run asked for.
    """
    plan, config = plan_of(run), run.info["config"]
    kind, drive = str(config.get("kind") or ""), config.get("drive") or {}
    ended = read_json(run.path / names.ENDED) or {"interrupted": True}
    logged = held_by_locust(run.table) if kind == LOCUST else logged_steps(run)
    counted = Counted(run, [entry.window for entry in logged], plan.slos, run.server)
    shared = shared_tokens(drive)

    def audit(window: Window) -> str:
        step = counted.steps[window]
        if kind == LOCUST:  # its users may pause, and nobody read the server
            return instrument_sentence(step.known, window, plan.slos, step.tokens.gaps)
        return unusable(window, step.known, run.server, plan.slos, shared=shared, counted=step)

    replayed = replay(plan, logged, counted, searched=kind == KNEE, audit=audit)
    levels = step_levels(
        replayed.steps,
        counted,
        run.server,
        plan,
        clients=run.client,
        gpus=run.gpu,
        traces=run.traces,
        run_id=str(drive.get("run_id") or ""),
    )
    asked = dict.fromkeys([*(config.get("compat") or ()), *compat])
    windows = [s.window for s in replayed.steps if not s.invalid]
    windows = windows or [s.window for s in replayed.steps]  # the headline says if none is valid
    gave_up = ended.get("status") == Status.target_failed and replayed.steps
    error = commonest_error(run, replayed.steps[-1].window.chosen_ns if gave_up else 0)
    told = Result(
        command=kind,
        target=target_of(run),
        client=ended.get("figures") or {},
        lacking=tuple(lacking(run.server)),
        invalid_reason=ended.get("invalid") or why_failed(ended, replayed, error),
        commonest_error=error,
        interrupted=bool(ended.get("interrupted")),
        damage=tuple(run.damage.sentences()),
        replay_differences=tuple(replayed.differences),
        compat={name: beside(COMPAT[name], run, windows) for name in asked} or None,
    )
    if kind == KNEE:
        result = _with_knee(told, plan, replayed, levels, counted, ended=ended)
    else:
        status = "" if ended.get("invalid") else str(ended.get("status") or "")
        result = judged(told, plan, levels, counted, status)
    status = Status.interrupted if told.interrupted else result.status
    gates = gates_of(replace(result, status=status), run.path, config)
    code = exit_code(status, gates, EXIT_OF[status])
    return replace(result, status=status, exit_code=code, gates=tuple(gates))


def _with_knee(
    told: Result,
    plan: SearchPlan,
    replayed: Replay,
    levels: list[Level],
    counted: Counted,
    *,
    ended: Json,
) -> Result:
    """What a search found. What only the live run knew of its end comes first."""
    done = replayed.done
    if told.invalid_reason:
        failed_hard = ended.get("status") == Status.target_failed and not ended.get("invalid")
        done = Done(Status.target_failed if failed_hard else Status.invalid, None)
    found = locate(plan, replayed.steps, done)
    used = [s.evidence for s in replayed.steps if not s.invalid]
    none_met = (Status.not_reached, Status.target_failed, Status.invalid)  # no limit was met
    return replace(
        told,
        status=found.status,
        slos=tuple(knee_slos(plan, found, levels)),
        knee=knee_of(plan, found, levels, counted),
        levels=tuple(levels),
        bottleneck=None
        if found.status in none_met
        else bottleneck(plan, replayed.steps, found, levels, told.target.max_num_seqs),
        power=power_knee(used, plan.seed),
        plateau=plateau_knee(used),
    )


def target_of(run: Run) -> Target:
    """What run.json says of the server, and what its samples add."""
    server = run.info.get("server") or {}
    flags = server.get("flags") or {}
    versions = dict(run.info.get("versions") or {})
    if server.get("version"):
        versions["server"] = str(server["version"])
    # `vllm-harness engine` behind a URL says so in its version
    simulated = bool(server.get("embedded")) or versions.get("server", "").startswith("harness-")
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
    """Why it ended early: no usable level, or the commonest error of what failed hard."""
    if ended.get("status") not in (Status.invalid, Status.target_failed) or not replayed.steps:
        return ""
    users = replayed.steps[-1].window.users
    if why := replayed.steps[-1].invalid:
        return f"the level of {users} users, on which the answer hangs, cannot be used: {why}."
    said = f"most often with {error!r}" if error else "and none ended well"
    return (
        f"at level {users} more than half of the requests failed, {said}; see whether the server "
        "still runs and what its log says, then run again; what was measured before is kept."
    )


def commonest_error(run: Run, from_ns: int) -> str:
    """What most of the failed requests ended with that ended since then; "" where none failed."""
    bad = np.flatnonzero(failed(run.table) & (run.table.done_ns >= from_ns))
    said = Counter(run.errors[i] or OUTCOMES[run.table.outcome[i]].value for i in bad)
    return said.most_common(1)[0][0] if said else ""


def write_results(path: Path, compat: Sequence[str] = ()) -> tuple[Run, Result]:
    """Compute and write result.json and requests.parquet; the run and its result."""
    run = read_run(path)
    result = compute(run, compat)
    folder = RunFolder(path)
    folder.write_json(names.RESULT, to_json(result))
    write_parquet(folder)
    return run, result
