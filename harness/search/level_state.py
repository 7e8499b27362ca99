"""The state of a level while it is held, the choice of the next one, and the drain before it.

The choice is a pure function of the levels held so far, so a run can be replayed from its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from harness.core.states import Decision, Purpose, Status, StopRule
from harness.diagnosis.cohort import MAX_SERVER_LAG_NS, scrape_interval
from harness.metrics.evidence import Evidence, Window, pool_evidence, worst_ratio
from harness.search.next_level import Done, Hold, SearchPlan, next_action
from harness.search.power import next_power_action
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.metrics.record_source import RecordSource
    from harness.records.samples import ServerSample
    from harness.search.judge import Judgement

# A drain costs about four request lifetimes: draining before and after, and settling from an empty
# server. It pays if a lifetime is at most this share of the time that the level may be held: less
# where users never pause, since a level may be held far longer there than it usually is.
DRAIN_SHARES: Final = {True: 1 / 48, False: 1 / 24}
DRAIN_SLACK_NS: Final = 5 * SECOND  # two ticks and a scrape, in addition to the lifetimes
SCRAPED_NS: Final = 3 * SECOND  # a few scrapes
# Levels that are held once the search has ended: its answer does not depend on them.
AFTER_SEARCH: Final = (Purpose.cause, Purpose.hold)
INVALID_IN_A_ROW: Final = 2  # after two invalid holds of a level the next would be invalid too

# On the way up a quick check is enough if the worst SLO is far from its limit, that is, if the odds
# differ by a factor of two, or if it is met with many observations. The minimum of each case:
FAR_LOG_ODDS: Final = float(np.log(2))
CLEARLY_GOOD_MIN_N: Final = 3
CLEARLY_BAD_MIN_N: Final = 10
MET_MIN_N: Final = 40
# Of a latency over its limit: a level on the way up that is so far below needs no more time than
# its first requests take, and one so far above no whole lifetime after it has settled.
VERY_FAR_LOG: Final = float(np.log(10))
VERY_BAD_LOG: Final = float(np.log(3))


class RecordView(Protocol):
    """The records that the controller reads: those of a live run or of a simulated one."""

    def table(self, from_ns: int, horizon_ns: int) -> RecordSource:
        """Requests with any event after `from_ns`, as known at `horizon_ns`."""

    def ended(self, from_ns: int, horizon_ns: int) -> tuple[int, int]:
        """(requests that ended in this time, those of them that failed), without reading tokens."""


@dataclass(frozen=True, slots=True)
class HeldLevel:
    """A level that ended: its window, its evidence and the decision at its end."""

    window: Window
    evidence: Evidence
    judgement: Judgement
    invalid: str = ""  # why the search ignores it; "": it is used
    audited: bool = True  # False: the audit runs later, on the records


# Returns what to hold next: a pure function of the plan, the levels so far and the time spent (ns).
ChooseNext = Callable[[SearchPlan, Sequence[HeldLevel], int], Hold | Done]


def next_level(plan: SearchPlan, levels: Sequence[HeldLevel], spent_ns: int) -> Hold | Done:
    """The next action of the search, by the SLOs or, without any, by power.

    The search ends as `invalid` if its answer depends on a level that cannot be used: it asks for a
    level that was invalid twice in a row, or ends without an answer right after an invalid one.
    """
    choose = next_action if plan.slos else next_power_action
    action = choose(plan, valid_evidence(levels), spent_ns)
    if isinstance(action, Done):
        was_invalid = bool(levels) and bool(levels[-1].invalid)
        lacks_it = action.status == Status.inconclusive and was_invalid
        return Done(Status.invalid, None) if lacks_it else action
    last_holds = levels[-INVALID_IN_A_ROW:]
    were_invalid = [
        bool(level.invalid) and level.window.load == action.load for level in last_holds
    ]
    is_hopeless = len(were_invalid) == INVALID_IN_A_ROW and all(were_invalid)
    return Done(Status.invalid, None) if is_hopeless else action


def valid_evidence(levels: Sequence[HeldLevel]) -> list[Evidence]:
    """The evidence of the levels that may be used."""
    return [level.evidence for level in levels if not level.invalid]


def decided_evidence(levels: Sequence[HeldLevel]) -> list[Evidence]:
    """The evidence of the valid levels, without those that are judged after the run."""
    return valid_evidence([level for level in levels if level.judgement.decision != Decision.held])


def with_earlier_holds(evidence: Evidence, levels: Sequence[HeldLevel]) -> Evidence:
    """What a hold and the earlier valid ones of the same level show together."""
    load = evidence.window.load
    earlier_holds = [level for level in levels if level.window.load == load]
    return pool_evidence([*valid_evidence(earlier_holds), evidence])


def least_observed(evidence: Evidence, plan: SearchPlan) -> float:
    """The number of observations of the SLO that has the fewest."""
    if not plan.slos:
        return float(evidence.ended.sum())
    observations = []
    for i in range(len(plan.slos)):
        sizes, _ = evidence.over(i)
        observations.append(float(sizes.sum()))
    return min(observations)


def is_far(evidence: Evidence, plan: SearchPlan) -> bool:
    """Whether the level is clearly on one side of the knee, so that the search may go on."""
    n = least_observed(evidence, plan)
    if not plan.slos:  # no limit to compare with
        return n >= MET_MIN_N
    clearly_good_min_n = CLEARLY_GOOD_MIN_N
    if evidence.plain:  # one request of a single user is enough to climb on from it
        clearly_good_min_n = min(CLEARLY_GOOD_MIN_N, evidence.window.load.count)
    log_odds = float(worst_ratio(evidence, plan.slos)[0])
    is_clearly_good = log_odds < -FAR_LOG_ODDS and n >= clearly_good_min_n
    is_clearly_bad = log_odds > FAR_LOG_ODDS and n >= CLEARLY_BAD_MIN_N
    is_met = log_odds < 0 and n >= MET_MIN_N
    return is_clearly_good or is_clearly_bad or is_met


def is_very_far(evidence: Evidence, plan: SearchPlan) -> bool:
    """Whether latencies are so far below every limit that even those of a ramp show enough."""
    if not evidence.plain:
        return False
    return (
        least_observed(evidence, plan) >= CLEARLY_GOOD_MIN_N
        and float(worst_ratio(evidence, plan.slos)[0]) < -VERY_FAR_LOG
    )


def is_overloaded(evidence: Evidence, plan: SearchPlan) -> bool:
    """Whether a level is so far above the knee that it need not last for a whole request."""
    if not evidence.plain or not plan.slos:
        return False
    is_far_above = float(worst_ratio(evidence, plan.slos)[0]) > VERY_BAD_LOG
    return is_far_above and plan.judge(evidence).decision == Decision.failed


def lacks_scrapes(evidence: Evidence, plan: SearchPlan, server: ServerSample | None) -> bool:
    """Whether a level over a limit has seen too little of the server to say what bound it.

    Only where users never pause: elsewhere levels last longer than that by themselves.
    """
    if server is None or not evidence.plain or not plan.slos:
        return False
    is_short = evidence.seconds * SECOND < SCRAPED_NS
    return is_short and bool(worst_ratio(evidence, plan.slos)[0] > 0)


def should_drain(hold: Hold, life_ns: float, server: ServerSample | None, *, plain: bool) -> bool:
    """Whether to drain around a level: a batch, or a repeated one if the server says what runs."""
    if hold.stop == StopRule.batch:
        return True
    if hold.purpose != Purpose.repeat or server is None or not server.running >= 0:
        return False
    return 0 < life_ns <= hold.max_ns * DRAIN_SHARES[plain]


@dataclass(slots=True)
class Drain:
    began_ns: int
    limit_ns: float
    batch: bool = False  # before a batch every answer is here: only the users must go
    gone_ns: int = -1  # when the last user had stopped

    def over(self, now_ns: int, running_users: int, server: ServerSample | None) -> bool:
        """Whether no user is left and a later scrape of the server shows no request either."""
        if running_users:
            self.gone_ns = -1
            return False
        if self.gone_ns < 0:
            self.gone_ns = now_ns
        if self.batch:
            return True
        if server is None or server.running > 0 or server.waiting > 0:
            return False
        # The scrape must have begun after the last user stopped, or it may describe an earlier
        # state.
        return scrape_interval(server)[0] >= self.gone_ns + MAX_SERVER_LAG_NS

    def late(self, now_ns: int) -> bool:
        return not self.batch and now_ns - self.began_ns > self.limit_ns + DRAIN_SLACK_NS


@dataclass(slots=True)
class CurrentLevel:
    hold: Hold
    began_ns: int
    loaded_ns: int  # when its users were requested
    drain: Drain | None = None  # set until then
    ramped_ns: int = -1
    settled_ns: int = -1
    next_look_ns: int = 0  # horizon of the next evaluation

    @property
    def phase(self) -> str:
        """Of `run_series.PHASES`."""
        if self.drain is not None:
            return "draining"
        if self.ramped_ns < 0:
            return "ramping"
        return "settling" if self.settled_ns < 0 else "measuring"
