"""From the search's steps and all records to knee.json: the same live and replayed."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from harness.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_SLO_MISSED, EXIT_UNDECIDED
from harness.measure.audit import audit_tokens, little
from harness.measure.fit import crossing, levels_of
from harness.measure.judge import BAD, GOOD, UNDECIDED
from harness.measure.power import plateau_knee, power_knee
from harness.measure.search import bracket_of
from harness.measure.summary import pooled_block, window_summary
from harness.measure.verdict import conclude, facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.fit import Crossing, Level
    from harness.measure.samples import ServerSample
    from harness.measure.search import Done, SearchPlan
    from harness.measure.table import RecordTable
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


@dataclass(frozen=True, slots=True)
class Found:
    """The knee in whole users: at most `users` meet the SLOs, 95 % interval [lo, hi]."""

    status: str
    users: int | None
    lo: int
    hi: int


def locate(plan: SearchPlan, steps: Sequence[Step], done: Done) -> Found:
    """Status, knee and interval from all valid steps."""
    if not plan.slos:
        return _locate_power(plan, steps, done)
    levels = levels_of([s.evidence for s in steps if not s.invalid], plan.slos)
    if not levels or done.status == "invalid":
        return Found(done.status, None, plan.min_users, plan.max_users)
    if done.status == "slo_failed_at_min":
        return Found(done.status, None, 0, levels[0].users)
    if done.status == "not_reached":
        return Found(done.status, None, levels[-1].users, plan.max_users)
    cross = crossing(levels, plan.slos, plan.seed, decided=ends_decided(plan, levels))
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
    return Found("found", knee["users"], *knee["ci95"])


def step_json(
    step: Step, table: RecordTable, samples: Sequence[ServerSample], plan: SearchPlan
) -> Json:
    """One entry of `steps`: every figure of the window, followed to the requests' ends."""
    w = step.window
    inside = [s for s in samples if w.settled_ns <= s.at_ns <= w.end_ns]
    figures = window_summary(table, w.settled_ns, w.end_ns, plan.slos)
    open_then = int(((table.sent_ns <= w.end_ns) & (table.done_ns > w.end_ns)).sum())
    law, tokens = little(table, w), audit_tokens(table, w, samples)
    seen = facts(inside, w.users, "")
    over = {}
    for i, slo in enumerate(plan.slos):
        sizes, hits = step.evidence.over(i)
        over[slo.name] = round(float(hits.sum() / sizes.sum()), 6) if sizes.sum() else None
    entry: Json = {
        **asdict(w),
        "decision": "invalid" if step.invalid else step.judgement.decision,
        "reason": step.invalid or step.judgement.reason,
        "n": figures["ttft_ms"]["n"],
        "n_open": open_then,
        **figures,
    }
    for key in ("ttft", "itl"):
        for part in ("", "_ci95", "_instrument"):
            entry[f"{key}_p95_ms{part}"] = figures[f"{key}_ms"][f"p95{part}"]
    entry["over_share"] = over
    entry["little"] = asdict(law)
    entry["audit"] = asdict(tokens)
    entry["server"] = {
        "running_mean": _number(seen.running),
        "waiting_mean": _number(seen.waiting),
        "kv_usage_max": _number(seen.kv_usage_max),
        "preemptions": _number(seen.preemptions),
    }
    return entry


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)


def knee_json(
    plan: SearchPlan,
    steps: Sequence[Step],
    done: Done,
    table: RecordTable,
    samples: Sequence[ServerSample],
) -> Json:
    """knee.json without `client`, which only the run itself knows."""
    found = locate(plan, steps, done)
    entries = [
        step_json(s, _near(table, s.window.settled_ns, s.window.end_ns), samples, plan)
        for s in steps
    ]
    used = [s.evidence for s in steps if not s.invalid]
    at = _entry_at(found, entries)
    figures = _figures_at(at, entries, table)
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
        "plateau": plateau_knee(used),
        "power": power_knee(used, plan.seed),
        "steps": entries,
        "verdict": asdict(_verdict(plan, steps, found, samples)),
    }


def _near(table: RecordTable, start: int, end: int) -> RecordTable:
    """Requests that overlap a window."""
    return table.select((table.done_ns >= start) & (table.sent_ns <= end))


def _entry_at(found: Found, entries: Sequence[Json]) -> Json | None:
    """The step nearest below the knee (or the lowest), the one with most requests."""
    users = found.users if found.users is not None else found.lo
    below = [e for e in entries if e["users"] <= users and e["decision"] != "invalid"]
    if not below:
        return min(entries, key=lambda e: e["users"], default=None)
    level = max(e["users"] for e in below)
    return max((e for e in below if e["users"] == level), key=lambda e: e["n"])


def _figures_at(entry: Json | None, entries: Sequence[Json], table: RecordTable) -> Json:
    """Figures of the knee's level, all its steps together, each with its two intervals."""
    level = entry["users"] if entry else None
    same = [e for e in entries if e["users"] == level and e["decision"] != "invalid"]
    windows = [(e["settled_ns"], e["end_ns"]) for e in same]
    out: Json = {}
    for key in ("ttft", "itl"):
        block = pooled_block(table, key, windows) if windows else {}
        for part in ("", "_ci95", "_instrument"):
            out[f"{key}_p95_ms{part}"] = block.get(f"p95{part}")
    for name in ("output_tokens_per_s", "requests_per_s", "goodput_per_s"):
        rates = [e[name] for e in same]
        out[name] = round(sum(rates) / len(rates), 4) if rates else None
    out["measured_at_users"] = level
    return out


def _verdict(
    plan: SearchPlan, steps: Sequence[Step], found: Found, samples: Sequence[ServerSample]
) -> Any:
    """Rules over the first level above the knee (else over the highest level held)."""
    users = found.users if found.users is not None else found.lo
    above = [s for s in steps if s.window.users > users and not s.invalid]
    pick = min(above, key=lambda s: s.window.users) if above else None
    pick = pick or max(steps, key=lambda s: s.window.users, default=None)
    if pick is None:
        return conclude(facts([], 0, ""))
    w = pick.window
    broken = ""
    shares = []
    for i, slo in enumerate(plan.slos):
        sizes, hits = pick.evidence.over(i)
        shares.append((float(hits.sum() / max(sizes.sum(), 1)) / slo.allowed, slo.metric))
    if shares and max(shares)[0] > 1:
        broken = max(shares)[1]
    inside = [s for s in samples if w.settled_ns <= s.at_ns <= w.end_ns]
    return conclude(facts(inside, w.users, broken))


__all__ = ["EXIT_OF", "GOOD", "Found", "knee_json", "locate", "step_json"]
