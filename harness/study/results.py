"""From a run folder to its results: the same code right after the run and a year later.

Nothing here knows a server or a clock. The search is replayed on the records, so what knee.json
says is what the records say.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from harness.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_SLO_MISSED, RunFolderError
from harness.measure.beside import beside
from harness.measure.compat import COMPAT
from harness.measure.evidence import Window
from harness.measure.judge import BAD
from harness.measure.metrics import failed
from harness.measure.search import Done, SearchPlan
from harness.measure.serverside import lacking
from harness.measure.slo import Slo
from harness.measure.summary import window_summary
from harness.measure.table import OUTCOMES
from harness.measure.traces import traced_split
from harness.runfolder import names
from harness.runfolder.jsonfiles import read_json
from harness.runfolder.parquet import write_parquet
from harness.runfolder.reader import read_run
from harness.runfolder.writer import RunFolder
from harness.server.seats import max_num_seqs
from harness.study.counted import Counted
from harness.study.entries import step_entries
from harness.study.outcome import EXIT_OF, knee_json
from harness.study.replay import Logged, Replay, replay
from harness.study.usable import shared_tokens, unusable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.runfolder.reader import Run

Json = dict[str, Any]
INVALID: Final = 5


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
            Window(**{k: v for k, v in row.items() if k in known}),
            row.get("invalid", ""),
            row.get("decision", ""),
            row.get("audited", True),
            row.get("reason", ""),
        )
        for row in run.steps
    ]


def compute(run: Run, compat: Sequence[str] = ()) -> tuple[Json, Json, int]:
    """(summary.json, knee.json or steps of a run, exit code). Raises RunFolderError.

    `compat`: tools whose figures the summary has too, beside those that the run asked for.
    """
    plan, logged = plan_of(run), logged_steps(run)
    config = run.info["config"]
    ended = read_json(run.path / names.ENDED) or {"interrupted": True}
    searched = config.get("kind") == "knee"
    span = _span(run, logged)
    counted = Counted(run, [entry.window for entry in logged], plan.slos, run.server, span)
    shared = shared_tokens(config.get("drive") or {})

    def audit(window: Window) -> str:
        step = counted.steps[window]
        return unusable(window, step.known, run.server, plan.slos, shared=shared, counted=step)

    replayed = replay(plan, logged, counted, searched=searched, audit=audit)
    made = _knee if searched else _held
    result = made(plan, replayed, run, ended, counted)
    result["server"] = server_side(run)
    run_id = str((config.get("drive") or {}).get("run_id") or "")
    for step in result["steps"]:
        window = step["settled_ns"], step["end_ns"]
        step["ttft_traced"] = traced_split(run.table, run.traces, run_id, window)
    result["invalid_reason"] = ended.get("invalid") or why_failed(run, ended, replayed)
    result["client"] = ended.get("figures") or {}
    result["interrupted"] = bool(ended.get("interrupted"))
    result["damage"] = run.damage.sentences()
    result["replay_differences"] = replayed.differences
    summary = window_summary(run, *span, plan.slos, counted.whole) | {
        "window_ns": list(span),
        "client": result["client"],
        "exit_code": result["exit_code"],
    }
    asked = dict.fromkeys([*(config.get("compat") or ()), *compat])
    if asked:
        valid = [s for s in replayed.steps if not s.invalid]
        windows = [s.window for s in valid or replayed.steps]  # the headline says if none is
        summary["compat"] = {name: beside(COMPAT[name], run, windows) for name in asked}
    return summary, result, int(result["exit_code"])


def server_side(run: Run) -> Json:
    """What the whole run shows of the server: its seats, and what it does not say."""
    return {
        "max_num_seqs": max_num_seqs(run.info.get("server") or {}, run.server),
        "lacking": lacking(run.server),
    }


def why_failed(run: Run, ended: Json, replayed: Replay) -> str:
    """Why it ended as invalid: no usable step, or the commonest error of what failed hard."""
    if ended.get("status") != "invalid" or not replayed.steps:
        return ""
    last = replayed.steps[-1].window
    if why := replayed.steps[-1].invalid:
        return f"the level of {last.users} users, on which the answer hangs, cannot be used: {why}."
    bad = failed(run.table) & (run.table.done_ns >= last.chosen_ns)
    said = Counter(run.errors[i] or OUTCOMES[run.table.outcome[i]].value for i in bad.nonzero()[0])
    told, count = said.most_common(1)[0] if said else ("no request ended", 0)
    return (
        f"the target failed hard, at {last.users} users too: {count} times {told!r}; see whether "
        "the server still runs and what its log says, then run again; what was measured before "
        "is kept."
    )


def _span(run: Run, logged: list[Logged]) -> tuple[int, int]:
    """The measured windows of all steps as one; without steps, everything."""
    if logged:
        return logged[0].window.settled_ns, max(s.window.end_ns for s in logged)
    if len(run.table):
        return int(run.table.sent_ns.min()), int(run.table.done_ns.max())
    return 0, 1


def _knee(plan: SearchPlan, replayed: Replay, run: Run, ended: Json, counted: Counted) -> Json:
    done = Done("invalid", None) if ended.get("invalid") else replayed.done
    if ended.get("status") == "invalid":  # the target failed hard twice: not the search's word
        done = Done("invalid", None)
    result = knee_json(
        plan,
        replayed.steps,
        done,
        run,
        run.server,
        clients=run.client,
        gpus=run.gpu,
        server=run.info.get("server") or {},
        counted=counted,
    )
    if ended.get("interrupted"):
        result["status"], result["exit_code"] = "undecided", EXIT_INTERRUPTED
        result["knee"]["users"] = None
    return result


def _held(plan: SearchPlan, replayed: Replay, run: Run, ended: Json, counted: Counted) -> Json:
    steps = step_entries(
        replayed.steps, counted, run.server, plan, clients=run.client, gpus=run.gpu
    )
    code = EXIT_OK
    if any(s.judgement.decision == BAD for s in replayed.steps):
        code = EXIT_SLO_MISSED
    if ended.get("invalid") or ended.get("status") == "invalid":
        code = INVALID
    if any(s.invalid for s in replayed.steps):
        code = INVALID
    if ended.get("interrupted"):
        code = EXIT_INTERRUPTED
    return {
        "status": "held",
        "exit_code": code,
        "slos": [str(slo) for slo in plan.slos],
        "steps": steps,
    }


def write_results(path: Path, compat: Sequence[str] = ()) -> tuple[Json, Json, int]:
    """Compute and write summary.json, knee.json, requests.parquet; (summary, result, exit code)."""
    run = read_run(path)
    summary, result, code = compute(run, compat)
    folder = RunFolder(path)
    folder.write_json(names.SUMMARY, summary)
    folder.write_json(names.KNEE, result)
    write_parquet(folder)
    return summary, result, code


__all__ = ["EXIT_OF", "compute", "logged_steps", "plan_of", "write_results"]
