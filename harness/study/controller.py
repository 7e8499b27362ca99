"""Holds one level after another: ticked once a second, in real or simulated time alike.

A step has three phases. *ramp*: until the level's users are all there and busy. *settle*: until
two requests per user have ended since (the old load and the burst of the ramp are gone; one is
enough where the load has hardly changed and where the look only says whether to climb on), or three
lifetimes where a long queue makes turnover slow. *measure*: until the sequential test
decides, or the step's time is up. A judgement sees only what happened up to a horizon a little
before now, by when every record has arrived, so that it can be repeated from the run folder.

Around a level's first repeat the load drains to nothing. vLLM observes TTFT at the first token and
its parts when a request ends: only between two instants at which nothing is under way are they of
the same requests (measure/cohort.py). More drains would take time from the search: of 200 simulated
knees it found 2% fewer with every repeat drained, 1% fewer with the first of each level drained up
to lifetimes of a third of its time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.evidence import Evidence, Window, gather, pool, worst_ratio
from harness.measure.judge import Judgement, judge_share
from harness.measure.search import Done, Hold, SearchPlan
from harness.measure.states import Decision, Purpose, Status, StopRule
from harness.measure.table import OPEN
from harness.study.steps import Drain, Now, Step, Target, search, worth_it
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.measure.recorded import Recorded
    from harness.measure.samples import ServerSample
    from harness.measure.table import RecordTable
    from harness.study.steps import Choice, Records

LAG_NS: Final = 2 * SECOND  # simulated: as long as a record and its parts take in real time
MOST_LAG_NS: Final = 30 * SECOND  # records later than this are not waited for
# A level is there when this share of its users has a request under way, and settled when so many
# requests per user have ended since.
BUSY_SHARE: Final = 0.9
TURNOVERS: Final = 2
TURNOVERS_LEAN: Final = 1  # on the way up, or where users change by at most NEARBY
NEARBY: Final = 0.1
# How many request lifetimes a level is measured for.
SHORTEST: Final = 2  # before any look
SHORTEST_LEAN: Final = 1  # before a look that only says whether to climb on
GOOD_LIFETIMES: Final = 8  # before a level near the knee passes: queues and full caches grow
STEADY_LIFETIMES: Final = 6  # for a throughput: as many as it has blocks
# A quick look on the way up suffices when the worst SLO is far from its limit, by a factor of two
# (in log-odds), or when it is merely met but seen often. Observations that each case needs:
FAR: Final = float(np.log(2))
CLEARLY_GOOD_N: Final = 3
CLEARLY_BAD_N: Final = 10
MET_N: Final = 40
# A step ends at once when so many requests of the last ten seconds failed. Where answers take
# seconds one failure may be all that ended, so it takes three.
HARD_FAIL_NS: Final = 10 * SECOND
HARD_FAIL_SHARE: Final = 0.5
HARD_FAIL_LEAST: Final = 3
HARD_FAILED: Final = "more than half of the requests failed"
GIVEN: Final = (StopRule.time, StopRule.requests)  # ends that nothing about latencies can change


def _shortest(hold: Hold) -> int:
    return SHORTEST_LEAN if hold.stop == StopRule.lean else SHORTEST


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
        action = self.choose(self.plan, self.steps, now_ns - self.began_ns)
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
        if now.settled_ns >= 0 and not failing and now.hold.stop in GIVEN:
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
        return TURNOVERS_LEAN if nearby or hold.stop == StopRule.lean else TURNOVERS

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
        hold, length = now.hold, horizon - now.settled_ns
        ended, bad = self.records.ended(now.settled_ns, horizon)
        self._life_ns = hold.users * length / ended if ended else length  # Little's law
        too_many = judge_share(ended, bad, self.plan.max_errors, self.plan.level_alpha)
        if bad > self._hard_share * ended and too_many == Decision.failed:
            self._hard_failed(now, now_ns, horizon)
            return
        end_ns = -1
        if hold.stop == StopRule.time and length >= hold.max_ns:
            end_ns = horizon
        elif hold.stop == StopRule.requests and ended >= hold.max_requests:
            sent = np.sort(self.records.table(now.settled_ns, horizon).table.sent_ns)
            sent = sent[sent >= now.settled_ns][: hold.max_requests]
            if len(sent) == hold.max_requests:  # exactly so many requests, not one more
                end_ns = int(sent[-1])
        if end_ns >= 0:
            self._put_off(self._window(now, end_ns, now_ns))
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
            few = short or self._least(self.peek) < CLEARLY_BAD_N
        over_budget = now_ns - self.began_ns >= self.plan.budget_ns
        return over_budget or length >= now.hold.max_ns * (2 if few else 1)

    def _enough(self, now: Now, evidence: Evidence, held: Evidence) -> bool:
        """Whether the step may end before its cap."""
        length = evidence.window.end_ns - evidence.window.settled_ns
        if now.hold.stop == StopRule.steady:
            return (
                length >= STEADY_LIFETIMES * evidence.lifetime_ns
                and evidence.ended.sum() >= CLEARLY_BAD_N
            )
        lifetimes = length / max(evidence.lifetime_ns, 1)
        if lifetimes < _shortest(now.hold):
            return False
        decision, lean = self.plan.judge(held).decision, now.hold.stop == StopRule.lean
        outlasted = lean or lifetimes >= GOOD_LIFETIMES
        decided = decision == Decision.failed or (decision == Decision.passed and outlasted)
        if now.hold.purpose == Purpose.repeat:
            return decided and self.plan.judge(evidence).decision != Decision.inconclusive
        return decided or (lean and self._far(evidence))

    def _far(self, evidence: Evidence) -> bool:
        if not self.plan.slos:  # nothing to be far from
            return self._least(evidence) >= MET_N
        z = float(worst_ratio(evidence, self.plan.slos)[0])
        n = self._least(evidence)
        return bool(
            (z < -FAR and n >= CLEARLY_GOOD_N)
            or (z > FAR and n >= CLEARLY_BAD_N)
            or (z < 0 and n >= MET_N)
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
            if now.hold.stop in GIVEN:
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
        if self._recovering or nowhere or now.hold.stop in GIVEN:
            self.result = Done(Status.target_failed, None)
            return
        self._recovering = True
        back = max(lower, default=self.plan.min_users)
        self.now = Now(
            Hold(back, Purpose.down, StopRule.lean, self.plan.budget_ns // 10), now_ns, now_ns
        )
