"""From a run folder to its results: the same code right after the run and a year later.

Nothing here knows a server or a clock. The search is replayed on the records, so what result.json
says is what the records say.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from math import inf, nan
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
from harness.measure.decide import ERRORS, counts_of, decide
from harness.measure.evidence import Window
from harness.measure.metrics import failed
from harness.measure.power import plateau_knee, power_knee
from harness.measure.result import Bottleneck, Result, SloResult, Target
from harness.measure.search import Done, SearchPlan
from harness.measure.selfcheck import instrument_sentence
from harness.measure.serverside import lacking
from harness.measure.slo import Slo
from harness.measure.states import Decision, Purpose, Status, Verdict
from harness.measure.table import OUTCOMES
from harness.measure.typed import to_json
from harness.runfolder import names
from harness.runfolder.jsonfiles import read_json
from harness.runfolder.parquet import write_parquet
from harness.runfolder.reader import read_run
from harness.runfolder.writer import RunFolder
from harness.server.seats import max_num_seqs
from harness.study.controller import BUSY_SHARE, TURNOVERS
from harness.study.counted import Counted
from harness.study.entries import step_levels
from harness.study.outcome import Found, knee_of, knee_slos, locate
from harness.study.replay import Logged, Replay, replay
from harness.study.usable import shared_tokens, unusable
from harness.study.why import bottleneck

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.measure.decide import SloResult as Decided
    from harness.measure.result import Level
    from harness.measure.table import RecordTable
    from harness.runfolder.reader import Run

Json = dict[str, Any]
LOCUST: Final = "locust"  # the kind of a run that the `locust` command made

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


def held_by_locust(table: RecordTable) -> list[Logged]:
    """The one level of a run that the `locust` command made, as far as its records show it.

    The level begins when nearly all users are busy; it has settled when two requests per user have
    ended since, as under our own controller; it ends when the last request was sent.
    """
    if not len(table):
        return []
    sent, done = np.sort(table.sent_ns), np.sort(table.done_ns)
    busy = np.arange(1, len(sent) + 1) - np.searchsorted(done, sent, "right")
    users = int(busy.max())
    ramped = int(sent[np.argmax(busy >= BUSY_SHARE * users)])
    since = done[done > ramped]
    settled = int(since[TURNOVERS * users - 1]) if len(since) >= TURNOVERS * users else ramped
    first, last = int(sent[0]), max(int(sent[-1]), settled)
    window = Window(0, users, Purpose.hold, first, ramped, settled, last, last)
    return [Logged(window, "", Decision.held, audited=False)]


def compute(run: Run, compat: Sequence[str] = ()) -> Result:
    """Everything that the records say. Raises RunFolderError.

    `compat`: tools whose figures the result has too, beside those that the run asked for.
    """
    plan, config = plan_of(run), run.info["config"]
    by_locust = config.get("kind") == LOCUST
    logged = held_by_locust(run.table) if by_locust else logged_steps(run)
    ended = read_json(run.path / names.ENDED) or {"interrupted": True}
    searched = config.get("kind") == "knee"
    drive = config.get("drive") or {}
    counted = Counted(run, [entry.window for entry in logged], plan.slos, run.server)
    shared = shared_tokens(drive)

    def audit(window: Window) -> str:
        step = counted.steps[window]
        if by_locust:  # its users may pause, and nobody read the server
            return instrument_sentence(step.known, window, plan.slos, step.tokens.gaps)
        return unusable(window, step.known, run.server, plan.slos, shared=shared, counted=step)

    replayed = replay(plan, logged, counted, searched=searched, audit=audit)
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
    target = target_of(run)
    found: Found | None = None
    slos: list[SloResult] = []
    errors: SloResult | None = None
    if searched:
        found = locate(plan, replayed.steps, _done(replayed, ended))
        status, slos = found.status, knee_slos(plan, found, levels)
    else:
        status, levels, slos, errors = _judged(plan, levels, counted)
        if ended.get("invalid") or any(level.decision == Decision.invalid for level in levels):
            status = Status.invalid
        elif ended.get("status") == Status.target_failed and not plan.slos:
            status = Status.target_failed
    if ended.get("interrupted"):
        status = Status.interrupted
    used = [s.evidence for s in replayed.steps if not s.invalid]
    power, plateau = (power_knee(used, plan.seed), plateau_knee(used)) if searched else (None, None)
    asked = dict.fromkeys([*(config.get("compat") or ()), *compat])
    windows = [s.window for s in replayed.steps if not s.invalid]
    return Result(
        command=str(config.get("kind") or ""),
        status=status,
        exit_code=EXIT_OF[status],
        target=target,
        slos=tuple(slos),
        errors=errors,
        knee=knee_of(plan, found, levels, counted) if found else None,
        levels=tuple(levels),
        bottleneck=_bottleneck(plan, replayed, found, levels, target) if found else None,
        power=power,
        plateau=plateau,
        client=ended.get("figures") or {},
        lacking=tuple(lacking(run.server)),
        invalid_reason=ended.get("invalid") or why_failed(run, ended, replayed),
        interrupted=bool(ended.get("interrupted")),
        damage=tuple(run.damage.sentences()),
        replay_differences=tuple(replayed.differences),
        compat={  # the headline says if no level can be used
            name: beside(COMPAT[name], run, windows or [s.window for s in replayed.steps])
            for name in asked
        }
        or None,
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


def _done(replayed: Replay, ended: Json) -> Done:
    """How the search ended; what only the live run knew comes first."""
    if ended.get("invalid") or ended.get("status") == Status.invalid:
        return Done(Status.invalid, None)
    if ended.get("status") == Status.target_failed:
        return Done(Status.target_failed, None)
    return replayed.done


def _judged(
    plan: SearchPlan, levels: Sequence[Level], counted: Counted
) -> tuple[Status, list[Level], list[SloResult], SloResult | None]:
    """Levels that were given: (status, the levels with their verdicts, the run's, its failures').

    Without an SLO nothing is judged. The run's word on an SLO is that of the level where it fares
    worst.
    """
    if not plan.slos:
        return Status.measured, list(levels), [], None
    steps = list(counted.steps.items())
    decided = decide(
        [
            counts_of(
                step.table,
                window,
                plan.slos,
                plan.max_errors,
                judged=step.judged,
                gaps=step.tokens.gaps,
            )
            for window, step in steps
        ]
    )
    told, failures = [], []
    for level, found in zip(levels, decided, strict=True):
        slos = [
            _said(one, level, level.observed(slo))
            for one, slo in zip(found.slos, plan.slos, strict=True)
        ]
        told.append(replace(level, slos=tuple(slos)))
        failures.append(_said(found.errors, level))
    by_slo = zip(*(level.slos for level in told), strict=True)
    slos = [max(results, key=_how_bad) for results in by_slo]
    errors = max(failures, key=_how_bad, default=None)
    verdicts = {one.verdict for one in slos}
    status = Status.met if verdicts == {Verdict.met} else Status.inconclusive
    if Verdict.missed in verdicts or (errors is not None and errors.verdict == Verdict.missed):
        status = Status.missed
    return status, told, slos, errors


def _said(found: Decided, level: Level, observed: float = nan) -> SloResult:
    name = f"max_errors={found.allowed:.4%}".rstrip("0%").rstrip(".") + "%"
    return SloResult(
        slo=name if found.slo == ERRORS else found.slo,
        verdict=found.verdict,
        observed=observed,
        users=level.users,
        n=found.n,
        n_over=found.over,
        allowed=found.allowed,
        needs_more=found.needs_more,
    )


def _how_bad(one: SloResult) -> tuple[int, float]:
    order = (Verdict.met, Verdict.inconclusive, Verdict.missed)
    return order.index(one.verdict), one.n_over / one.n if one.n else inf


def _bottleneck(
    plan: SearchPlan, replayed: Replay, found: Found, levels: list[Level], target: Target
) -> Bottleneck | None:
    """What stops it; nothing where no limit was met."""
    if found.status in (Status.not_reached, Status.target_failed, Status.invalid):
        return None
    return bottleneck(plan, replayed.steps, found, levels, target.max_num_seqs)


def why_failed(run: Run, ended: Json, replayed: Replay) -> str:
    """Why it ended early: no usable level, or the commonest error of what failed hard."""
    if ended.get("status") not in (Status.invalid, Status.target_failed) or not replayed.steps:
        return ""
    last = replayed.steps[-1].window
    if why := replayed.steps[-1].invalid:
        return f"the level of {last.users} users, on which the answer hangs, cannot be used: {why}."
    bad = failed(run.table) & (run.table.done_ns >= last.chosen_ns)
    said = Counter(run.errors[i] or OUTCOMES[run.table.outcome[i]].value for i in bad.nonzero()[0])
    told, count = said.most_common(1)[0] if said else ("no request ended", 0)
    return (
        f"at {last.users} users more than half of the requests failed, {count} times with "
        f"{told!r}; see whether the server still runs and what its log says, then run again; what "
        "was measured before is kept."
    )


def write_results(path: Path, compat: Sequence[str] = ()) -> tuple[Run, Result]:
    """Compute and write result.json and requests.parquet; the run and its result."""
    run = read_run(path)
    result = compute(run, compat)
    folder = RunFolder(path)
    folder.write_json(names.RESULT, to_json(result))
    write_parquet(folder, names.PARQUET, run.pieces())
    return run, result
