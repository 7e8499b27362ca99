"""After the search: a level just above the knee, where none was held, to see what binds there.

A search may end with a failing level that is far above the knee. What is short there need not be
short at the knee, so with budget left one more level is held, for 20 s at most. The knee does not
depend on it: it is judged after the run, and the search never sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from harness.core.states import Purpose, Status, StopRule
from harness.metrics.evidence import worst_ratio
from harness.search.cause_level import is_near
from harness.search.knee_estimate import estimate_knee
from harness.search.level_state import SCRAPED_NS, next_level, valid_evidence
from harness.search.next_level import Done, Hold
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.metrics.evidence import Evidence
    from harness.search.level_state import ChooseNext, HeldLevel
    from harness.search.next_level import SearchPlan

NEEDS_CAUSE: Final = (Status.found, Status.holds, Status.inconclusive)
ABOVE_KNEE: Final = 1.15  # times the knee: far enough to break an SLO, and near it
MEASURED_NS: Final = 20 * SECOND
LEAST_NS: Final = 5 * SECOND  # a hold so short shows rates
# What passes before it is measured: users start, and requests of the level before end.
WARM_LIFETIMES: Final = 3
MOST_WARM_NS: Final = 40 * SECOND  # a longer warm-up is not worth it


def searching(*, has_metrics: bool) -> ChooseNext:
    """The search, and the level for its cause where the server shows what it does."""
    return search_with_cause if has_metrics else next_level


def search_with_cause(plan: SearchPlan, levels: Sequence[HeldLevel], spent_ns: int) -> Hold | Done:
    """A pure function of the levels, as the search is."""
    own = [level for level in levels if level.window.purpose != Purpose.cause]
    action = next_level(plan, own, spent_ns)
    was_held = len(own) < len(levels)
    if isinstance(action, Hold) or was_held:
        return action
    return _cause_hold(plan, own, action, plan.budget_ns - spent_ns) or action


def _cause_hold(
    plan: SearchPlan, levels: Sequence[HeldLevel], done: Done, left_ns: int
) -> Hold | None:
    """A level near the knee; None: one was held, none is needed, or the budget is spent."""
    if not plan.slos or done.status not in NEEDS_CAUSE:
        return None
    knee = estimate_knee(plan, levels, done).count
    evidences = valid_evidence(levels)
    if not knee or _is_shown(plan, evidences, knee):
        return None
    count = max(round(ABOVE_KNEE * knee), knee + 1)
    if count > plan.max_users:
        return None
    nearest = min(evidences, key=lambda evidence: abs(evidence.window.load.count - count))
    warm_ns = WARM_LIFETIMES * nearest.lifetime_ns
    measured_ns = int(min(MEASURED_NS, left_ns - warm_ns))
    if warm_ns > MOST_WARM_NS or measured_ns < LEAST_NS:
        return None
    return Hold(plan.unit.of_count(count), Purpose.cause, StopRule.time, measured_ns)


def _is_shown(plan: SearchPlan, evidences: Sequence[Evidence], knee: int) -> bool:
    """Whether a level near the knee breaks an SLO and was held for a few scrapes."""
    for evidence in evidences:
        count = evidence.window.load.count
        is_above = knee < count and is_near(count, knee)
        is_long = evidence.seconds * SECOND >= SCRAPED_NS
        if is_above and is_long and worst_ratio(evidence, plan.slos)[0] > 0:
            return True
    return False
