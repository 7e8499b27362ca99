"""What a run planned, and the levels that it held: read from its folder."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from harness.core.load import REQUESTS_PER_S, LoadUnit, recorded_load, unit_of_users
from harness.core.run_kinds import kind_of
from harness.core.states import Purpose
from harness.errors import (
    RunFolderError,
)
from harness.metrics.evidence import Window
from harness.records import names
from harness.records.json_files import read_json
from harness.search.locust_levels import (
    asked_users,
    locust_levels,
)
from harness.search.next_level import SearchPlan
from harness.search.replay import LoggedLevel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.core.run_kinds import RunKind
    from harness.records.folder_reader import Run


def kind_of_run(run: Run) -> type[RunKind]:
    """As run.json names it. Raises RunFolderError for one that this version does not know."""
    config = run.info.get("config") or {}
    return kind_of(str(config.get("kind") or ""), str(run.path))


def search_plan(run: Run) -> SearchPlan:
    """The plan that run.json holds. Raises RunFolderError."""
    stored = (run.info.get("config") or {}).get("plan")
    if not isinstance(stored, dict):
        raise RunFolderError(
            f"{run.path} has no plan: expected run.json with `config.plan`, which is written "
            "before the load; without it the records can be read but not judged."
        )
    return SearchPlan.from_json(stored, levels_unit(run))


def logged_levels(run: Run) -> list[LoggedLevel]:
    """The windows in levels.jsonl; a line without one is counted as damage.

    Of a test that Locust decided about they always follow from the records: what was written may
    be of a time when it was still going on.
    """
    if not kind_of_run(run).decides:
        ended = read_json(run.path / names.ENDED) or {}
        return locust_levels(run.table, asked_users(ended))
    logged = []
    for row in run.levels:
        try:
            window = _window(row)
        except (KeyError, TypeError, ValueError, OverflowError):
            run.damage.bad_lines += 1
            continue
        level = LoggedLevel(
            window,
            invalid=str(row.get("invalid", "")),
            decision=str(row.get("decision", "")),
            audited=bool(row.get("audited", True)),
            reason=str(row.get("reason", "")),
        )
        logged.append(level)
    return logged


def _window(row: Mapping[str, Any]) -> Window:
    numbers = {
        field.name: int(row[field.name])
        for field in fields(Window)
        if field.name not in ("purpose", "load")
    }
    rate_per_s = float(row.get("rate_per_s", 0.0))  # older folders have none
    load = recorded_load(int(row["users"]), rate_per_s)
    return Window(**numbers, load=load, purpose=Purpose(row["purpose"]))


def levels_unit(run: Run) -> LoadUnit:
    """What its levels and its knee count."""
    config = run.info["config"]
    if config["plan"].get("rate_step_per_s"):
        return REQUESTS_PER_S
    return unit_of_workload((config.get("drive") or {}).get("workload") or {})


def unit_of_workload(workload: dict[str, Any]) -> LoadUnit:
    """What its users are called."""
    return unit_of_users(
        talk=bool(workload.get("conversation")), pause=bool(workload.get("think_ms"))
    )
