"""Holds one level after another: ticked once a second, in real or simulated time alike.

A step has three phases. *ramp*: until the level's users are all there and busy. *settle*: until
two requests per user have ended since (the old load and the burst of the ramp are gone; one is
enough where the load has hardly changed and where the look only says whether to climb on), or three
lifetimes where a long queue makes turnover slow. *measure*: until the sequential test
decides, or the step's cap. A judgement sees only what happened up to a horizon a little before now,
by when every record has arrived, so that it can be repeated from the run folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from harness.measure.evidence import Evidence, Window, gather, pool, worst_ratio
from harness.measure.judge import BAD, GOOD, UNDECIDED, Judgement
from harness.measure.metrics import failed
from harness.measure.power import next_power_action
from harness.measure.search import Done, Hold, SearchPlan, next_action
from harness.measure.table import OPEN
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.measure.samples import ServerSample
    from harness.measure.table import RecordTable

LAG_NS: Final = 2 * SECOND  # by then a record has come from its worker, a part at the latest
FAR: Final = float(np.log(2))  # a quick look suffices at half or twice the limit
SHORTEST: Final = 2  # lifetimes that any look needs,
SHORTEST_LEAN: Final = 1  # one that says only whether to climb on
GOOD_LIFETIMES: Final = 8  # and a level near the knee before it counts as good
STEADY_LIFETIMES: Final = 6  # a throughput needs so many, with as many blocks
CLEAR_N: Final = 3  # requests or gaps that a look needs on the way up: all under half the limit,
QUICK_N: Final = 10  # the worst over twice the limit,
LEAN_N: Final = 40  # or the quantile merely below the limit
HARD_FAIL_NS: Final = 10 * SECOND
HARD_FAIL_SHARE: Final = 0.5
TURNOVERS: Final = 2  # so many requests per user have ended since the ramp: settled;
TURNOVERS_LEAN: Final = 1  # on the way up, or
NEARBY: Final = 0.1  # when users change by this share at most
BUSY_SHARE: Final = 0.9  # of the users have a request under way: the level is there


class Choice(Protocol):
    """What to hold next, from the plan, the evidence so far and the time spent (ns)."""

    def __call__(
        self, plan: SearchPlan, evidences: Sequence[Evidence], spent_ns: int, /
    ) -> Hold | Done:
        """Deterministic in its arguments."""


class Records(Protocol):
    """Where the controller sees what happened: a live ledger or the simulator."""

    def table(self, from_ns: int, horizon_ns: int) -> RecordTable:
        """Requests with any event after `from_ns`, as known at `horizon_ns`."""


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


@dataclass(slots=True)
class _Now:
    """The step under way."""

    hold: Hold
    began_ns: int
    ramped_ns: int = -1
    settled_ns: int = -1
    look_ns: int = 0  # horizon of the next look: a tenth longer each time, a second at least


def search(plan: SearchPlan, evidences: Sequence[Evidence], spent_ns: int) -> Hold | Done:
    """The next action: by the SLOs, or by power where there are none."""
    return (next_action if plan.slos else next_power_action)(plan, evidences, spent_ns)


def _shortest(hold: Hold) -> int:
    return SHORTEST_LEAN if hold.until == "lean" else SHORTEST


class KneeController:
    """Runs `next_action` against the world. `steps` and `result` are what it found."""

    def __init__(
        self,
        plan: SearchPlan,
        records: Records,
        *,
        lag_ns: int = LAG_NS,
        choose: Choice | None = None,
        audit: Callable[[Window, RecordTable], str] | None = None,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        """`choose` says what to hold next (default: the search for a knee).

        `audit` says why a step must not be used ('' if it may be); `on_step` is given each step.
        """
        self.plan = plan
        self.records = records
        self.lag_ns = lag_ns
        self.choose = choose or search
        self.audit = audit or (lambda _window, _table: "")
        self.on_step = on_step or (lambda _step: None)
        self.steps: list[Step] = []
        self.result: Done | None = None
        self.server: ServerSample | None = None
        self.began_ns = -1
        self.now: _Now | None = None
        self.peek: Evidence | None = None  # the latest look at the step under way
        self._life_ns = 0.0
        self._recovering = False

    def tick(self, now_ns: int, running_users: int, server: ServerSample | None = None) -> Target:
        """Called about once a second; says what the load should be."""
        self.server = server
        if self.began_ns < 0:
            self.began_ns = now_ns
        if self.result is None and self.now is None:
            self._advance(now_ns)
        if self.now is not None:
            self._observe(self.now, now_ns, running_users)
        if self.result is not None or self.now is None:
            return Target(0, 1.0, done=True)
        users = self.now.hold.users
        return Target(users, float(max(users, 1)))

    def _advance(self, now_ns: int) -> None:
        used = [step.evidence for step in self.steps if not step.invalid]
        action = self.choose(self.plan, used, now_ns - self.began_ns)
        if isinstance(action, Done):
            self.result = action
        else:
            self.now = _Now(action, now_ns)

    def _observe(self, now: _Now, now_ns: int, running_users: int) -> None:
        horizon = now_ns - self.lag_ns
        since = now.settled_ns if now.settled_ns >= 0 else now.began_ns - 10 * SECOND
        table = self.records.table(since, horizon)
        if self._hard_fail(table, now, horizon):
            self._hard_failed(now, table, now_ns, horizon)
        elif now.ramped_ns < 0:
            self._ramp(now, table, horizon, running_users)
        elif now.settled_ns < 0:
            self._settle(now, table, horizon)
        else:
            self._measure(now, table, now_ns, horizon)

    def _ramp(self, now: _Now, table: RecordTable, horizon: int, running_users: int) -> None:
        busy = int(((table.outcome == OPEN) & (table.sent_ns >= 0)).sum())
        waited = horizon - now.began_ns
        there = running_users == now.hold.users
        if there and waited > 0 and (busy >= BUSY_SHARE * now.hold.users or waited > self._slow()):
            now.ramped_ns = horizon

    def _slow(self) -> float:
        """How long a phase may wait for the load itself: three lifetimes as last measured."""
        return 3 * self._life_ns if self._life_ns else 30.0 * SECOND

    def _settle(self, now: _Now, table: RecordTable, horizon: int) -> None:
        ended = int(((table.outcome != OPEN) & (table.done_ns > now.ramped_ns)).sum())
        turned = ended >= self._turnovers(now.hold) * now.hold.users
        if turned or horizon - now.ramped_ns > self._slow():
            now.settled_ns = horizon

    def _turnovers(self, hold: Hold) -> int:
        before = self.steps[-1].window.users if self.steps else 0
        nearby = abs(before - hold.users) <= NEARBY * hold.users
        return TURNOVERS_LEAN if nearby or hold.until == "lean" else TURNOVERS

    def _window(self, now: _Now, horizon: int) -> Window:
        settled = now.settled_ns if now.settled_ns >= 0 else now.began_ns
        return Window(
            index=len(self.steps),
            users=now.hold.users,
            purpose=now.hold.purpose,
            chosen_ns=now.began_ns,
            start_ns=now.ramped_ns if now.ramped_ns >= 0 else now.began_ns,
            settled_ns=settled,
            end_ns=max(horizon, settled),
            judged_ns=horizon + self.lag_ns,
        )

    def _measure(self, now: _Now, table: RecordTable, now_ns: int, horizon: int) -> None:
        capped = self._spent(now, now_ns, horizon)
        if horizon < now.look_ns and not capped:
            return
        now.look_ns = horizon + max(SECOND, (horizon - now.settled_ns) // 10)
        window = self._window(now, horizon)
        evidence = self.peek = gather(table, window, self.plan.slos)
        self._life_ns = evidence.lifetime_ns
        held = pool(
            [s.evidence for s in self.steps if s.window.users == window.users and not s.invalid]
            + [evidence]
        )
        failing = evidence.errors.sum() > HARD_FAIL_SHARE * evidence.ended.sum()
        if failing and self.plan.judge(evidence).decision == BAD:
            self._hard_failed(now, table, now_ns, horizon)
        elif capped or self._enough(now, evidence, held):
            self._finish(window, table, evidence, self.plan.judge(held))
            self._advance(now_ns)

    def _spent(self, now: _Now, now_ns: int, horizon: int) -> bool:
        """Whether the step's time is up: its cap and enough requests, twice the cap, the budget."""
        length = horizon - now.settled_ns
        few = self.peek is None or self.peek.window.index != len(self.steps)
        if not few and self.peek is not None:
            short = length < _shortest(now.hold) * self.peek.lifetime_ns
            few = short or self._least(self.peek) < QUICK_N
        if now.hold.until == "requests":
            return False
        if now.hold.until == "time":
            return length >= now.hold.cap_ns
        over_budget = now_ns - self.began_ns >= self.plan.budget_ns
        return over_budget or length >= now.hold.cap_ns * (2 if few else 1)

    def _enough(self, now: _Now, evidence: Evidence, held: Evidence) -> bool:
        """Whether the step may end before its cap."""
        length = evidence.window.end_ns - evidence.window.settled_ns
        if now.hold.until == "time":
            return False  # its cap alone ends it
        if now.hold.until == "requests":
            return float(evidence.ended.sum()) >= now.hold.cap_ns
        if now.hold.until == "steady":
            return (
                length >= STEADY_LIFETIMES * evidence.lifetime_ns
                and evidence.ended.sum() >= QUICK_N
            )
        lifetimes = length / max(evidence.lifetime_ns, 1)
        if lifetimes < _shortest(now.hold):
            return False
        decision = self.plan.judge(held).decision
        decided = decision == BAD or (decision == GOOD and self._outlasted(now, lifetimes))
        if now.hold.purpose == "repeat":
            return decided and self.plan.judge(evidence).decision != UNDECIDED
        return decided or (now.hold.until == "lean" and self._far(evidence))

    def _outlasted(self, now: _Now, lifetimes: float) -> bool:
        """Long enough for a level to have shown how bad it gets: queues and full caches grow."""
        return now.hold.until == "lean" or lifetimes >= GOOD_LIFETIMES

    def _far(self, evidence: Evidence) -> bool:
        z = float(worst_ratio(evidence, self.plan.slos)[0])
        n = self._least(evidence)
        return bool(
            (z < -FAR and n >= CLEAR_N) or (z > FAR and n >= QUICK_N) or (z < 0 and n >= LEAN_N)
        )

    def _least(self, evidence: Evidence) -> float:
        """Observations of the scarcest SLO."""
        seen = [float(evidence.over(i)[0].sum()) for i in range(len(self.plan.slos))]
        return min(seen, default=float(evidence.ended.sum()))

    def _finish(
        self, window: Window, table: RecordTable, evidence: Evidence, judgement: Judgement
    ) -> None:
        step = Step(window, evidence, judgement, self.audit(window, table))
        self.steps.append(step)
        self.now, self.peek = None, None
        self.on_step(step)

    def close(self, now_ns: int) -> None:
        """The run ends here: a step that was being measured is kept as far as it got."""
        now, self.now = self.now, None
        if now is None or self.result is not None:
            return
        if now.settled_ns >= 0 and now_ns > now.settled_ns:
            table = self.records.table(now.settled_ns, now_ns)
            window = self._window(now, now_ns)
            evidence = gather(table, window, self.plan.slos)
            self._finish(window, table, evidence, self.plan.judge(evidence))

    def _hard_fail(self, table: RecordTable, now: _Now, horizon: int) -> bool:
        since = max(now.began_ns, horizon - HARD_FAIL_NS)
        if horizon - now.began_ns < HARD_FAIL_NS:
            return False
        ended = (table.outcome != OPEN) & (table.done_ns > since)
        n = int(ended.sum())
        return n > 0 and int((failed(table) & ended).sum()) > HARD_FAIL_SHARE * n

    def _hard_failed(self, now: _Now, table: RecordTable, now_ns: int, horizon: int) -> None:
        """End the step as bad and go down to the last good level; there again: invalid."""
        now.settled_ns = max(now.began_ns, horizon - HARD_FAIL_NS)
        window = self._window(now, horizon)
        judgement = Judgement(BAD, "more than half of the requests failed", leans_bad=True)
        self._finish(window, table, gather(table, window, self.plan.slos), judgement)
        good = [s.window.users for s in self.steps if s.judgement.decision == GOOD]
        lower = [g for g in good if g < window.users]
        if self._recovering or (not lower and window.users <= self.plan.min_users):
            self.result = Done("invalid", None)
            return
        self._recovering = True
        back = max(lower, default=self.plan.min_users)
        self.now = _Now(Hold(back, "down", "lean", self.plan.budget_ns // 10), now_ns)
