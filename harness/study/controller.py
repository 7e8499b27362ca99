"""Holds one level after another: ticked once a second, in real or simulated time alike.

A step has three phases. *ramp*: until the level's users are all there and busy. *settle*: until
two requests per user have ended since (the old load and the burst of the ramp are gone; one is
enough where the load has hardly changed and where the look only says whether to climb on), or three
lifetimes where a long queue makes turnover slow. *measure*: until the sequential test
decides, or the step's cap. Around a level's first repeat the load drains (drain.py). A judgement
sees only what happened up to a horizon a little before now, by when every record has arrived, so
that it can be repeated from the run folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from harness.measure.evidence import Evidence, Window, gather, pool, worst_ratio
from harness.measure.judge import Judgement, judge_share
from harness.measure.search import Done, Hold, SearchPlan
from harness.measure.states import Decision, Purpose, Status
from harness.measure.table import OPEN
from harness.study.choosing import search, unless_invalid
from harness.study.drain import Drain, worth_it
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.measure.recorded import Recorded
    from harness.measure.samples import ServerSample
    from harness.measure.table import RecordTable
    from harness.study.choosing import Choice

LAG_NS: Final = 2 * SECOND  # simulated: as long as a record and its parts take in real time
MOST_LAG_NS: Final = 30 * SECOND  # records later than this are not waited for
GIVEN: Final = ("time", "requests")  # ends of a level that nothing about its latencies can change
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
HARD_FAILED: Final = "more than half of the requests failed"
HARD_FAIL_LEAST: Final = 3  # failures: where answers take seconds, one may be all that ended
TURNOVERS: Final = 2  # so many requests per user have ended since the ramp: settled;
TURNOVERS_LEAN: Final = 1  # on the way up, or
NEARBY: Final = 0.1  # when users change by this share at most
BUSY_SHARE: Final = 0.9  # of the users have a request under way: the level is there


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


def decided(steps: Sequence[Step]) -> list[Evidence]:
    """What the steps showed that the search uses, without those that are judged later."""
    used = [step for step in steps if not step.invalid]
    return [step.evidence for step in used if step.judgement.decision != Decision.held]


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


def _shortest(hold: Hold) -> int:
    return SHORTEST_LEAN if hold.until == "lean" else SHORTEST


class KneeController:
    """Runs `next_action` against the world. `steps` and `result` are what it found."""

    def __init__(
        self,
        plan: SearchPlan,
        records: Records,
        *,
        choose: Choice | None = None,
        audit: Callable[[Window, Recorded], str] | None = None,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        """`choose` says what to hold next (default: the search for a knee).

        `audit` says why a step must not be used ('' if it may be; None: each may); `on_step` is
        given each step.
        """
        self.plan = plan
        self.records = records
        self.choose = choose or search
        self.audit = audit
        self.on_step = on_step or (lambda _step: None)
        self.steps: list[Step] = []
        self.result: Done | None = None
        self.server: ServerSample | None = None
        self.began_ns = self.horizon_ns = -1
        self.now: Now | None = None
        self.peek: Evidence | None = None  # the latest look at the step under way
        self._life_ns = 0.0
        self._recovering = False
        self._emptied: dict[int, int] = {}  # levels held from empty to empty, and in which step
        self._drains = True  # until one takes too long: then somebody else keeps the server busy

    def tick(
        self,
        now_ns: int,
        running_users: int,
        server: ServerSample | None = None,
        known_ns: int | None = None,
    ) -> Target:
        """Called about once a second; says what the load should be.

        All that happened before `known_ns` is in the records (None: before LAG_NS ago).
        """
        self.server = server
        if self.began_ns < 0:
            self.began_ns = now_ns
        known_ns = now_ns - LAG_NS if known_ns is None else known_ns
        self.horizon_ns = max(known_ns, self.horizon_ns, now_ns - MOST_LAG_NS)
        if self.result is None and self.now is None:
            self._advance(now_ns)
        if self.now is not None and self.now.drain is not None:
            self._drain(self.now, self.now.drain, now_ns, running_users)
        elif self.now is not None:
            self._observe(self.now, now_ns, running_users)
        if self.result is not None or self.now is None:
            return Target(0, 1.0, done=True)
        per_s = float(max(self.now.hold.users, running_users, 1))
        return Target(0 if self.now.drain is not None else self.now.hold.users, per_s)

    def _advance(self, now_ns: int) -> None:
        used = [step.evidence for step in self.steps if not step.invalid]
        action = self.choose(self.plan, used, now_ns - self.began_ns)
        if self.choose is search:
            action = unless_invalid(action, self.steps)
        if isinstance(action, Done):
            self.result = action
            return
        self.now = Now(action, now_ns, now_ns)
        last = self.steps[-1].window.users if self.steps else 0
        closes = self._emptied.get(last) == len(self.steps) - 1
        opens = action.users not in self._emptied and worth_it(action, self._life_ns, self.server)
        if self._drains and (opens or closes):
            self.now.drain = Drain(now_ns, self._slow())
            self._emptied |= {action.users: len(self.steps)} if opens else {}

    def _drain(self, now: Now, drain: Drain, now_ns: int, running_users: int) -> None:
        empty = drain.over(now_ns, running_users, self.server)
        self._drains = empty or not drain.late(now_ns)
        if empty or not self._drains:
            now.drain, now.loaded_ns = None, now_ns

    def _observe(self, now: Now, now_ns: int, running_users: int) -> None:
        horizon = self.horizon_ns
        since = now.settled_ns if now.settled_ns >= 0 else now.began_ns - 10 * SECOND
        failing = self._hard_fail(now, since, horizon)
        if now.settled_ns >= 0 and not failing and now.hold.until in GIVEN:
            self._hold(now, now_ns, horizon)
            return
        looks = now.settled_ns < 0 or horizon >= now.look_ns or self._spent(now, now_ns, horizon)
        if not (failing or looks):
            return  # to go through all tokens of the step, each second, would cost more the longer
        if failing:
            self._hard_failed(now, now_ns, horizon)
            return
        if now.settled_ns >= 0:
            self._measure(now, self.records.table(since, horizon), now_ns, horizon)
        elif now.ramped_ns >= 0:
            self._settle(now, horizon)
        else:
            self._ramp(now, self.records.table(since, horizon).table, horizon, running_users)

    def _ramp(self, now: Now, table: RecordTable, horizon: int, running_users: int) -> None:
        busy = int(((table.outcome == OPEN) & (table.sent_ns >= 0)).sum())
        waited = horizon - now.loaded_ns
        there = running_users == now.hold.users
        if there and waited > 0 and (busy >= BUSY_SHARE * now.hold.users or waited > self._slow()):
            now.ramped_ns = horizon

    def _slow(self) -> float:
        """How long a phase may wait for the load itself: three lifetimes as last measured."""
        return 3 * self._life_ns if self._life_ns else 30.0 * SECOND

    def _settle(self, now: Now, horizon: int) -> None:
        ended, _ = self.records.ended(now.ramped_ns + 1, horizon)
        turned = ended >= self._turnovers(now) * now.hold.users
        if turned or horizon - now.ramped_ns > self._slow():
            now.settled_ns = horizon

    def _turnovers(self, now: Now) -> int:
        hold = now.hold
        before = self.steps[-1].window.users if self.steps else 0
        drained = now.loaded_ns > now.began_ns
        nearby = not drained and abs(before - hold.users) <= NEARBY * hold.users
        return TURNOVERS_LEAN if nearby or hold.until == "lean" else TURNOVERS

    def _window(self, now: Now, horizon: int, now_ns: int) -> Window:
        settled = now.settled_ns if now.settled_ns >= 0 else now.began_ns
        return Window(
            index=len(self.steps),
            users=now.hold.users,
            purpose=now.hold.purpose,
            chosen_ns=now.began_ns,
            start_ns=now.ramped_ns if now.ramped_ns >= 0 else now.began_ns,
            settled_ns=settled,
            end_ns=max(horizon, settled),
            judged_ns=now_ns,
        )

    def _measure(self, now: Now, seen: Recorded, now_ns: int, horizon: int) -> None:
        capped = self._spent(now, now_ns, horizon)
        now.look_ns = horizon + max(SECOND, (horizon - now.settled_ns) // 10)
        window = self._window(now, horizon, now_ns)
        evidence = self.peek = gather(seen, window, self.plan.slos)
        self._life_ns = evidence.lifetime_ns
        held = pool(
            [s.evidence for s in self.steps if s.window.users == window.users and not s.invalid]
            + [evidence]
        )
        failing = evidence.errors.sum() > self._hard_share * evidence.ended.sum()
        if failing and self.plan.judge(evidence).decision == Decision.failed:
            self._hard_failed(now, now_ns, horizon)
        elif capped or self._enough(now, evidence, held):
            self._finish(window, seen, evidence, self.plan.judge(held))
            self._advance(now_ns)

    def _hold(self, now: Now, now_ns: int, horizon: int) -> None:
        """A level that was given: it ends when that was said, and no token is looked at."""
        ended, bad = self.records.ended(now.settled_ns, horizon)
        length, by_time = horizon - now.settled_ns, now.hold.until == "time"
        self._life_ns = now.hold.users * length / ended if ended else length  # Little's law
        too_many = judge_share(ended, bad, self.plan.max_errors, self.plan.level_alpha)
        if bad > self._hard_share * ended and too_many == Decision.failed:
            self._hard_failed(now, now_ns, horizon)
        elif (length if by_time else ended) >= now.hold.cap_ns:
            sent = np.sort(self.records.table(now.settled_ns, horizon).table.sent_ns)
            sent = sent[sent >= now.settled_ns][: now.hold.cap_ns]
            if by_time or len(sent) == now.hold.cap_ns:  # exactly so many requests, not one more
                self._put_off(self._window(now, horizon if by_time else int(sent[-1]), now_ns))
                self._advance(now_ns)

    def _put_off(self, window: Window) -> None:
        """Keep a given level: it is judged and audited when the run is over."""
        ended, bad = self.records.ended(window.settled_ns, window.end_ns)
        seconds = max(window.end_ns - window.settled_ns, 1) / SECOND
        counts = (np.array([float(n)]) for n in (ended, bad, 0))
        unseen = Evidence(window, self._life_ns, seconds, (), *counts)
        told = Judgement(Decision.held, "judged from the records at the end", leans_to_fail=False)
        self._keep(Step(window, unseen, told, audited=self.audit is None))

    def _spent(self, now: Now, now_ns: int, horizon: int) -> bool:
        """Whether the step's time is up: its cap and enough requests, twice the cap, the budget."""
        length = horizon - now.settled_ns
        few = self.peek is None or self.peek.window.index != len(self.steps)
        if not few and self.peek is not None:
            short = length < _shortest(now.hold) * self.peek.lifetime_ns
            few = short or self._least(self.peek) < QUICK_N
        over_budget = now_ns - self.began_ns >= self.plan.budget_ns
        return over_budget or length >= now.hold.cap_ns * (2 if few else 1)

    def _enough(self, now: Now, evidence: Evidence, held: Evidence) -> bool:
        """Whether the step may end before its cap."""
        length = evidence.window.end_ns - evidence.window.settled_ns
        if now.hold.until == "steady":
            return (
                length >= STEADY_LIFETIMES * evidence.lifetime_ns
                and evidence.ended.sum() >= QUICK_N
            )
        lifetimes = length / max(evidence.lifetime_ns, 1)
        if lifetimes < _shortest(now.hold):
            return False
        decision = self.plan.judge(held).decision
        decided = decision == Decision.failed or (
            decision == Decision.passed and self._outlasted(now, lifetimes)
        )
        if now.hold.purpose == Purpose.repeat:
            return decided and self.plan.judge(evidence).decision != Decision.inconclusive
        return decided or (now.hold.until == "lean" and self._far(evidence))

    def _outlasted(self, now: Now, lifetimes: float) -> bool:
        """Long enough for a level to have shown how bad it gets: queues and full caches grow."""
        return now.hold.until == "lean" or lifetimes >= GOOD_LIFETIMES

    def _far(self, evidence: Evidence) -> bool:
        if not self.plan.slos:  # nothing to be far from
            return self._least(evidence) >= LEAN_N
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
        self, window: Window, seen: Recorded, evidence: Evidence, judgement: Judgement
    ) -> None:
        why = self.audit(window, seen) if self.audit else ""
        self._recovering = False  # it answers again: only the level above was too much for it
        self._keep(Step(window, evidence, judgement, why))

    def _keep(self, step: Step) -> None:
        self.steps.append(step)
        self.now, self.peek = None, None
        self.on_step(step)

    def close(self, now_ns: int) -> None:
        """The run ends here: a step that was being measured is kept as far as it got."""
        now, self.now = self.now, None
        if now is None or self.result is not None:
            return
        if now.settled_ns >= 0 and now_ns > now.settled_ns:
            window = self._window(now, now_ns, now_ns)
            if now.hold.until in GIVEN:
                self._put_off(window)
                return
            seen = self.records.table(now.settled_ns, now_ns)
            evidence = gather(seen, window, self.plan.slos)
            self._finish(window, seen, evidence, self.plan.judge(evidence))

    @property
    def _hard_share(self) -> float:
        """Failures that end a step at once: above a half, and above what may fail."""
        return max(HARD_FAIL_SHARE, self.plan.max_errors)

    def _hard_fail(self, now: Now, since: int, horizon: int) -> bool:
        if horizon - now.began_ns < HARD_FAIL_NS:
            return False
        after = max(now.began_ns, horizon - HARD_FAIL_NS)
        ended, bad = self.records.ended(max(after + 1, since), horizon)
        return bad >= HARD_FAIL_LEAST and bad > self._hard_share * ended

    def _hard_failed(self, now: Now, now_ns: int, horizon: int) -> None:
        """End the step as failed and go down to the last level that passed; there again: the end.

        Where levels are given there is nothing to go down for: the run ends.
        """
        now.settled_ns = max(now.began_ns, horizon - HARD_FAIL_NS)
        window = self._window(now, horizon, now_ns)
        judgement = Judgement(Decision.failed, HARD_FAILED, leans_to_fail=True)
        # not audited: where requests fail at once, users are seldom busy and nothing adds up
        seen = self.records.table(now.settled_ns, horizon)
        self._keep(Step(window, gather(seen, window, self.plan.slos), judgement))
        good = [s.window.users for s in self.steps if s.judgement.decision == Decision.passed]
        lower = [g for g in good if g < window.users]
        nowhere = not lower and window.users <= self.plan.min_users
        if self._recovering or nowhere or now.hold.until in GIVEN:
            self.result = Done(Status.target_failed, None)
            return
        self._recovering = True
        back = max(lower, default=self.plan.min_users)
        self.now = Now(Hold(back, Purpose.down, "lean", self.plan.budget_ns // 10), now_ns, now_ns)
