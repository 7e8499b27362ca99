"""From the search's steps and all records to knee.json: the same live and replayed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from harness.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_SLO_MISSED, EXIT_UNDECIDED
from harness.measure.figures import block
from harness.measure.fit import crossing, levels_of
from harness.measure.judge import BAD, GOOD, UNDECIDED
from harness.measure.power import plateau_knee, power_knee
from harness.measure.search import bracket_of
from harness.measure.typed import to_json
from harness.server.seats import max_num_seqs
from harness.study.controller import decided
from harness.study.counted import Counted
from harness.study.entries import step_entries
from harness.study.why import Found, verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.fit import Crossing, Level
    from harness.measure.recorded import Recorded
    from harness.measure.samples import ClientSample, GpuSample, ServerSample
    from harness.measure.search import Done, SearchPlan
    from harness.study.controller import Step

Json = dict[str, Any]

EXIT_OF: Final = {
    "found": EXIT_OK,
    "not_reached": EXIT_OK,
    "slo_failed_at_min": EXIT_SLO_MISSED,
    "invalid": 5,
    "undecided": EXIT_UNDECIDED,
    "interrupted": EXIT_INTERRUPTED,
}
WIDEST: Final = (
    0.35  # an interval wider than this share of the knee (and two users) decides nothing
)


def locate(plan: SearchPlan, steps: Sequence[Step], done: Done) -> Found:
    """Status, knee and interval from all valid steps."""
    if not plan.slos:
        return _locate_power(plan, steps, done)
    levels = levels_of([s.evidence for s in steps if not s.invalid], plan.slos, plan.max_errors)
    if not levels or done.status == "invalid":
        return Found(done.status, None, *decided_range(plan, levels))
    if done.status == "slo_failed_at_min":
        return Found(done.status, None, 0, levels[0].users)
    if done.status == "not_reached":
        return Found(done.status, None, levels[-1].users, plan.max_users)
    cross = crossing(
        levels, plan.slos, plan.max_errors, plan.seed, decided=ends_decided(plan, levels)
    )
    users, lo, hi = _whole(cross, plan, levels[-1].users)
    least, most = decided_range(plan, levels)
    if least <= most:  # the sequential test vouches for these bounds
        lo, hi = min(max(lo, least), users), max(min(hi, most), users)
    if users < plan.min_users or math.isinf(cross.users):
        return Found("undecided", None, lo, hi)
    wide = not closed(plan, levels) and hi - lo > max(2, WIDEST * users)
    return Found("undecided" if wide else "found", None if wide else users, lo, hi)


def ends_decided(plan: SearchPlan, levels: Sequence[Level]) -> bool:
    """Whether the sequential test has decided both ends of the bracket."""
    bracket = bracket_of(levels)
    ends = (bracket.low, bracket.high)
    return all(x is not None and plan.judge(x.evidence).decision != UNDECIDED for x in ends)


def closed(plan: SearchPlan, levels: Sequence[Level]) -> bool:
    """Whether the levels on both sides of the crossing are as near as the plan asks."""
    bracket = bracket_of(levels)
    low, high = bracket.low, bracket.high
    return low is not None and high is not None and high.users - low.users <= plan.width(low.users)


def bracket_users(plan: SearchPlan, steps: Sequence[Step]) -> list[int | None]:
    """The levels between which the knee lies by these steps; None: none yet."""
    used = decided(steps)
    if not plan.slos or not used:
        return [None, None]
    ends = bracket_of(levels_of(used, plan.slos, plan.max_errors))
    return [end.users if end else None for end in (ends.low, ends.high)]


def decided_range(plan: SearchPlan, levels: Sequence[Level]) -> tuple[int, int]:
    """(highest level decided good, one below the lowest level decided bad)."""
    decisions = [(x.users, plan.judge(x.evidence).decision) for x in levels]
    good = [users for users, decision in decisions if decision == GOOD]
    bad = [users for users, decision in decisions if decision == BAD]
    return max(good, default=0), min(bad, default=plan.max_users + 1) - 1


def _whole(cross: Crossing, plan: SearchPlan, top: int) -> tuple[int, int, int]:
    """Whole users that still fit below the crossing, its ends likewise."""

    def floor(users: float) -> int:
        return plan.max_users if math.isinf(users) else math.floor(users + 1e-9)

    return floor(min(cross.users, top)), floor(cross.lo), floor(cross.hi)


def _locate_power(plan: SearchPlan, steps: Sequence[Step], done: Done) -> Found:
    knee = power_knee([s.evidence for s in steps if not s.invalid], plan.seed)
    if knee is None or done.status != "found":
        return Found(done.status, None, plan.min_users, plan.max_users)
    return Found("found", knee.users, *knee.ci95)


def knee_json(
    plan: SearchPlan,
    steps: Sequence[Step],
    done: Done,
    recorded: Recorded,
    samples: Sequence[ServerSample],
    *,
    clients: Sequence[ClientSample] = (),
    gpus: Sequence[GpuSample] = (),
    server: Json | None = None,
    counted: Counted | None = None,
) -> Json:
    """knee.json without `client`, which only the run itself knows. `server`: run.json's.

    `counted`: the same records' tokens, where they were counted already.
    """
    found = locate(plan, steps, done)
    counted = counted or Counted(recorded, [s.window for s in steps], plan.slos, samples)
    held = step_entries(steps, counted, samples, plan, clients=clients, gpus=gpus)
    entries, shown = [entry for entry, _ in held], [figures for _, figures in held]
    max_seqs = max_num_seqs(server or {}, samples)
    used = [s.evidence for s in steps if not s.invalid]
    at = _entry_at(found, entries)
    figures = _figures_at(at, entries, counted)
    return {
        "status": found.status,
        "exit_code": EXIT_OF[found.status],
        "slos": [str(slo) for slo in plan.slos],
        "knee": {
            "users": found.users,
            "ci95": [found.lo, found.hi],
            "criterion": " and ".join(map(str, plan.slos)) or "power",
            **figures,
        },
        "plateau": to_json(plateau_knee(used)),
        "power": to_json(power_knee(used, plan.seed)),
        "steps": entries,
        "verdict": to_json(verdict(plan, steps, found, shown, max_seqs)),
    }


def _entry_at(found: Found, entries: Sequence[Json]) -> Json | None:
    """The step nearest below the knee (or the lowest), the one with most requests."""
    users = found.users if found.users is not None else found.lo
    below = [e for e in entries if e["users"] <= users and e["decision"] != "invalid"]
    if not below:
        return min(entries, key=lambda e: e["users"], default=None)
    level = max(e["users"] for e in below)
    return max((e for e in below if e["users"] == level), key=lambda e: e["n"])


def _figures_at(entry: Json | None, entries: Sequence[Json], counted: Counted) -> Json:
    """Figures of the knee's level, all its steps together, each with its two intervals."""
    level = entry["users"] if entry else None
    same = [e for e in entries if e["users"] == level and e["decision"] != "invalid"]
    windows = [(e["settled_ns"], e["end_ns"]) for e in same]
    out: Json = {}
    for key in ("ttft", "itl"):
        told = block(counted.level(key, windows)) if windows else {}
        for part in ("", "_ci95", "_instrument"):
            out[f"{key}_p95_ms{part}"] = told.get(f"p95{part}")
    for name in ("output_tokens_per_s", "requests_per_s", "goodput_per_s"):
        rates = [e[name] for e in same]
        out[name] = round(sum(rates) / len(rates), 4) if rates else None
    out["measured_at_users"] = level
    return out


__all__ = ["EXIT_OF", "GOOD", "Found", "knee_json", "locate"]
