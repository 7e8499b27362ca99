"""What a step is, what comes after it, and how the load drains before one.

Choosing is a pure function of the steps so far, so that a run is replayed from its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from harness.measure.edges import LATE_NS, read_between
from harness.measure.power import next_power_action
from harness.measure.search import Done, Hold, SearchPlan, next_action
from harness.measure.states import Decision, Purpose, Status
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.measure.evidence import Evidence, Window
    from harness.measure.judge import Judgement
    from harness.measure.recorded import Recorded
    from harness.measure.samples import ServerSample

# A drain costs about four lifetimes: draining before and after, and settling from nothing. It is
# worth it where a lifetime is at most this part of the time that the level may be held.
DRAIN_SHARE: Final = 24
DRAIN_SLACK_NS: Final = 5 * SECOND  # for two ticks and a scrape, beside the lifetimes
INVALID_IN_A_ROW: Final = 2  # steps of one level: the next would be invalid too


class Records(Protocol):
    """Where the controller sees what happened: a live ledger or the simulator."""

    def table(self, from_ns: int, horizon_ns: int) -> Recorded:
        """Requests with any event after `from_ns`, as known at `horizon_ns`."""

    def ended(self, from_ns: int, horizon_ns: int) -> tuple[int, int]:
        """(requests that ended in this time, those of them that failed); no token is looked at."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the load should be now."""

    users: int
    spawn_per_s: float
    done: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """A finished step: its window, what it showed, and the judgement at its end."""

    window: Window
    evidence: Evidence
    judgement: Judgement
    invalid: str = ""  # why the search does not use it
    audited: bool = True  # False: whether it is valid is still to be found out, from the records


# What to hold next: a pure function of the plan, all steps so far and the time spent (ns).
Choice = Callable[[SearchPlan, Sequence[Step], int], Hold | Done]


def search(plan: SearchPlan, steps: Sequence[Step], spent_ns: int) -> Hold | Done:
    """The next action: by the SLOs, or by power where there are none.

    It is `invalid` where the answer hangs on a level whose steps cannot be used: the search asks
    for a level that was invalid twice running, or ends without an answer right after such a step.
    """
    used = [step.evidence for step in steps if not step.invalid]
    action = (next_action if plan.slos else next_power_action)(plan, used, spent_ns)
    last = steps[-INVALID_IN_A_ROW:]
    if isinstance(action, Done):
        lacking = action.status == Status.inconclusive and bool(last) and bool(last[-1].invalid)
        return Done(Status.invalid, None) if lacking else action
    hopeless = len(last) == INVALID_IN_A_ROW and all(
        step.invalid and step.window.users == action.users for step in last
    )
    return Done(Status.invalid, None) if hopeless else action


def decided(steps: Sequence[Step]) -> list[Evidence]:
    """What the steps showed that the search uses, without those that are judged later."""
    used = [step for step in steps if not step.invalid]
    return [step.evidence for step in used if step.judgement.decision != Decision.held]


def worth_it(hold: Hold, life_ns: float, server: ServerSample | None) -> bool:
    """Whether to drain around a level: a repeated one, of a server that says how much runs."""
    if hold.purpose != Purpose.repeat or server is None or not server.running >= 0:
        return False
    return 0 < life_ns <= hold.max_ns / DRAIN_SHARE


@dataclass(slots=True)
class Drain:
    """A drain under way."""

    began_ns: int
    limit_ns: float
    gone_ns: int = -1  # when there was no user left

    def over(self, now_ns: int, running_users: int, server: ServerSample | None) -> bool:
        """Nobody is there, so no request is open; and a later scrape of the server shows none."""
        if running_users:
            self.gone_ns = -1
            return False
        if self.gone_ns < 0:
            self.gone_ns = now_ns
        if server is None or server.running > 0 or server.waiting > 0:
            return False
        return read_between(server)[0] >= self.gone_ns + LATE_NS

    def late(self, now_ns: int) -> bool:
        return now_ns - self.began_ns > self.limit_ns + DRAIN_SLACK_NS


@dataclass(slots=True)
class Now:
    """The step under way."""

    hold: Hold
    began_ns: int
    loaded_ns: int  # its users were asked for
    drain: Drain | None = None  # until then
    ramped_ns: int = -1
    settled_ns: int = -1
    look_ns: int = 0  # horizon of the next look: a tenth longer each time, a second at least

    @property
    def phase(self) -> str:
        """Of `export.live.PHASES`."""
        step = "ramping" if self.ramped_ns < 0 else "settling" if self.settled_ns < 0 else ""
        return "draining" if self.drain is not None else step or "measuring"
