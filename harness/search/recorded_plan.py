"""What a run planned, and the levels that it held: read from its folder."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from harness.core.states import Purpose
from harness.errors import (
    RunFolderError,
)
from harness.metrics.evidence import Window
from harness.metrics.result import CONCURRENT
from harness.metrics.slo import Slo
from harness.records import names
from harness.records.json_files import read_json
from harness.search.comparison import PER_S
from harness.search.held_levels import LOCUST
from harness.search.locust_levels import (
    asked_users,
    locust_levels,
)
from harness.search.next_level import SearchPlan
from harness.search.replay import LoggedLevel

if TYPE_CHECKING:
    from harness.records.folder_reader import Run


def search_plan(run: Run) -> SearchPlan:
    """The plan that run.json holds. Raises RunFolderError."""
    stored = (run.info.get("config") or {}).get("plan")
    if not isinstance(stored, dict):
        raise RunFolderError(
            f"{run.path} has no plan: expected run.json with `config.plan`, which is written "
            "before the load; without it the records can be read but not judged."
        )
    values = {f.name: stored[f.name] for f in fields(SearchPlan) if f.name in stored}
    values["slos"] = tuple(Slo.parse(text) for text in stored["slos"])
    return SearchPlan(**values)


def logged_levels(run: Run) -> list[LoggedLevel]:
    """The windows in levels.jsonl; a line without one is counted as damage.

    Of a test that Locust decided about they always follow from the records: what was written may
    be of a time when it was still going on.
    """
    if (run.info.get("config") or {}).get("kind") == LOCUST:
        return locust_levels(run.table, asked_users(read_json(run.path / names.ENDED) or {}))
    logged = []
    for row in run.levels:
        try:
            own = ("purpose", "rate_per_s")
            instants = {f.name: int(row[f.name]) for f in fields(Window) if f.name not in own}
            rate = float(row.get("rate_per_s", 0.0))  # older folders have none
            window = Window(**instants, purpose=Purpose(row["purpose"]), rate_per_s=rate)
        except (KeyError, TypeError, ValueError, OverflowError):
            run.damage.bad_lines += 1
            continue
        words = ("invalid", "decision", "reason")
        invalid, decision, reason = (str(row.get(key, "")) for key in words)
        logged.append(
            LoggedLevel(window, invalid, decision, bool(row.get("audited", True)), reason)
        )
    return logged


def levels_unit(run: Run) -> str:
    """What its levels and its knee count: users, sessions or requests/s."""
    config = run.info["config"]
    if config["plan"].get("rate_step_per_s"):
        return PER_S
    one = level_unit((config.get("drive") or {}).get("workload") or {})
    return "users" if one == CONCURRENT else f"{one}s"


def level_unit(workload: dict[str, Any]) -> str:
    """What a level counts, in the singular; users who think are more than their requests."""
    talks, thinks = workload.get("conversation"), workload.get("think_ms")
    return "session" if talks else "user" if thinks else CONCURRENT
