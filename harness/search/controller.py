"""Holds one level after another: ticked some times a second, in real or simulated time alike.

A level has three phases. *Ramp* lasts until all users of the level have started and are busy.
*Settle* lasts until two requests per user have ended since, so that the old load and the burst of
the ramp are gone; one request is enough after a small change or on the way up, and three request
lifetimes end the phase where a long queue slows turnover.
*Measure* lasts until the sequential test decides or the level's time is up. A decision uses only
what happened before a horizon by which every record has arrived, so the run folder can repeat it.

The load drains to zero before and after the first repeat of a level. vLLM records TTFT at the
first token and its parts at the end of a request, so both describe the same requests only between
two instants without any request in flight (diagnosis/cohort.py). More drains would take
time from the search: of 200 simulated knees it found 2% fewer when it drained for every repeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.states import Decision, Purpose, Status, StopRule
from harness.load.arrivals import LoadTarget
from harness.metrics.evidence import (
    Evidence,
    Window,
    gather_evidence,
    pool_evidence,
)
from harness.metrics.ledger import waiting_or_thinking
from harness.search.busy_users import BUSY_SHARE, TURNOVERS, BusyUsers
from harness.search.judge import Judgement, judge_share
from harness.search.level_state import (
    CLEARLY_BAD_MIN_N,
    CurrentLevel,
    Drain,
    HeldLevel,
    is_far,
    lacks_scrapes,
    least_observed,
    next_level,
    should_drain,
)
from harness.search.next_level import Done, Hold, SearchPlan
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.metrics.record_source import RecordSource
    from harness.records.record_table import RecordTable
    from harness.records.samples import ServerSample
    from harness.search.level_state import ChooseNext, RecordView

LAG_NS: Final = 2 * SECOND  # the delay of records in real time; simulated runs use it too
MAX_LAG_NS: Final = 30 * SECOND  # records later than this are not waited for
LOOK_NS: Final = {True: SECOND // 4, False: SECOND}  # least time between looks, by `plain`
RATE_LEAD_NS: Final = SECOND  # by then every process sends at a level's rate
TURNOVERS_LEAN: Final = 1  # on the way up, or if users change by at most MAX_RELATIVE_CHANGE
MAX_RELATIVE_CHANGE: Final = 0.1
# The length of the measurement, in request lifetimes.
MIN_LIFETIMES: Final = 2  # before any decision
MIN_LIFETIMES_LEAN: Final = 1  # before a quick check on the way up
GOOD_LIFETIMES: Final = 8  # before a level near the knee may pass: queues and caches fill slowly
STEADY_LIFETIMES: Final = 6  # for throughput: one per block of its block bootstrap
# A level ends at once when this share of the requests of the last ten seconds failed. Where answers
# take seconds, a single failure may be all that ended, so at least three are required.
HARD_FAIL_NS: Final = 10 * SECOND
HARD_FAIL_SHARE: Final = 0.5
HARD_FAIL_MIN_FAILURES: Final = 3
# A level of a number of requests ends at once when that many, or at least so many, have ended and
# all have failed. A load process pauses meanwhile (senders/driver.py), so few more are sent.
ALL_FAILED: Final = 10
HARD_FAILED: Final = "more than half of the requests failed"
# ends that nothing about latencies can change
FIXED_LENGTH: Final = (StopRule.time, StopRule.requests, StopRule.batch)


def _min_lifetimes(hold: Hold) -> int:
    return MIN_LIFETIMES_LEAN if hold.stop == StopRule.lean else MIN_LIFETIMES


class KneeController:
    """Runs the search tick by tick; `levels` and `result` are what it found."""

    def __init__(
        self,
        plan: SearchPlan,
        records: RecordView,
        *,
        choose: ChooseNext | None = None,
        audit: Callable[[Window, RecordSource], str] | None = None,
        on_level: Callable[[HeldLevel], None] | None = None,
    ) -> None:
        """`choose` returns what to hold next (default: the search for a knee).

        `audit` returns why a level is invalid ('' if it is valid; None: all are valid); `on_level`
        is called with each level that ended.
        """
        self.plan = plan
        self.records = records
        self.choose = choose or next_level
        self.audit = audit
        self.on_level = on_level or (lambda _step: None)
        self.levels: list[HeldLevel] = []
        self.result: Done | None = None
        self.server: ServerSample | None = None
        self.began_ns = self.horizon_ns = -1
        self.now: CurrentLevel | None = None
        self.last_evidence: Evidence | None = None  # the latest figures of the current level
        self._life_ns = self._think_ns = 0.0  # means: in flight, and the planned pause after it
        self._recovering = False
        self._emptied: dict[int, int] = {}  # users of a drained level -> its index
        self._drains = True  # False once a drain takes too long: other clients use the server

    def tick(
        self,
        now_ns: int,
        running_users: int,
        server: ServerSample | None = None,
        known_ns: int | None = None,
    ) -> LoadTarget:
        """Advance the search; call it once a second or more often. Returns the load to apply now.

        The records are complete up to `known_ns` (None: up to LAG_NS ago).
        """
        self.server = server
        if self.began_ns < 0:
            self.began_ns = now_ns
        # The horizon never moves back, and records that are far too late do not hold it up.
        known_ns = now_ns - LAG_NS if known_ns is None else known_ns
        before = self.horizon_ns
        self.horizon_ns = max(known_ns, before, now_ns - MAX_LAG_NS)
        if self.result is None and self.now is None:
            self._advance(now_ns)
        if self.now is not None and self.now.drain is not None:
            self._drain(self.now, self.now.drain, now_ns, running_users)
        elif self.now is not None and self.horizon_ns > before:
            self._observe(self.now, now_ns, running_users)
        if self.result is not None or self.now is None:
            return LoadTarget(0, 1.0, done=True)
        users = 0 if self.now.drain is not None else self.now.hold.users
        per_s = float(max(self.now.hold.users, running_users, 1))
        pace = (len(self.levels), self.plan.rate_of(users)) if self.plan.rate_step_per_s else None
        return LoadTarget(users, per_s, pace=pace)

    def _advance(self, now_ns: int) -> None:
        action = self.choose(self.plan, self.levels, now_ns - self.began_ns)
        if isinstance(action, Done):
            self.result = action
            return
        self.now = CurrentLevel(action, now_ns, now_ns)
        last = self.levels[-1].window.users if self.levels else 0
        # A drained level is drained at both ends: `opens` before its first repeat, `closes` when
        # the next level begins.
        closes = self._emptied.get(last) == len(self.levels) - 1
        plain = all(level.evidence.plain for level in self.levels)
        opens = action.users not in self._emptied
        opens &= should_drain(action, self._life_ns, self.server, plain=plain)
        batch = action.stop == StopRule.batch
        backlog = bool(self.plan.rate_step_per_s) and action.users < last
        if backlog or (self._drains and (opens or closes)):
            self.now.drain = Drain(now_ns, self._slow(), batch or backlog)
            self._emptied |= {action.users: len(self.levels)} if opens and not batch else {}

    def _drain(self, now: CurrentLevel, drain: Drain, now_ns: int, running_users: int) -> None:
        if self.plan.rate_step_per_s:
            running_users = self._in_flight() if self.horizon_ns > now.began_ns + SECOND else 1
        empty = drain.over(now_ns, running_users, self.server)
        # A server that never becomes empty has other clients, so later levels do not try again.
        self._drains = empty or not drain.late(now_ns)
        if empty or not self._drains:
            now.drain, now.loaded_ns = None, now_ns
            if now.hold.stop == StopRule.batch:  # it has no warm-up
                now.ramped_ns = now.settled_ns = now_ns

    def _observe(self, now: CurrentLevel, now_ns: int, running_users: int) -> None:
        horizon = self.horizon_ns
        # Before the level has settled only the last ten seconds matter, for the hard-failure check.
        since = now.settled_ns if now.settled_ns >= 0 else now.began_ns - 10 * SECOND
        failing = self._hard_fail(now, since, horizon)
        if now.settled_ns >= 0 and not failing and now.hold.stop in FIXED_LENGTH:
            self._hold(now, now_ns, horizon)
            return
        if failing:
            self._hard_failed(now, now_ns, horizon)
            return
        # Evaluating a level reads all of its tokens, so those of a settled level are spaced out.
        due = now.settled_ns < 0 or horizon >= now.next_look_ns
        if not (due or self._spent(now, now_ns, horizon)):
            return
        if now.settled_ns >= 0:
            self._measure(now, self.records.table(since, horizon), now_ns, horizon)
        elif now.ramped_ns >= 0:
            self._settle(now, horizon)
        else:
            self._ramp(now, self.records.table(since, horizon).table, horizon, running_users)

    def _ramp(
        self, now: CurrentLevel, table: RecordTable, horizon: int, running_users: int
    ) -> None:
        busy, self._think_ns = waiting_or_thinking(table, horizon)
        waited = horizon - now.loaded_ns
        if self.plan.rate_step_per_s:
            if (table.sent_ns > now.loaded_ns + RATE_LEAD_NS).any() or waited > self._slow():
                now.ramped_ns = horizon
            return
        # A long queue at the server can keep users from being busy, so a long wait is enough.
        there = running_users == now.hold.users
        if there and waited > 0 and (busy >= BUSY_SHARE * now.hold.users or waited > self._slow()):
            now.ramped_ns = horizon

    def _slow(self) -> float:
        """Longest wait for the load to build up: three requests and pauses, as last measured."""
        return 3 * (self._life_ns + self._think_ns) if self._life_ns else 30.0 * SECOND

    def _settle(self, now: CurrentLevel, horizon: int) -> None:
        ended, _ = self.records.ended(now.ramped_ns + 1, horizon)
        users = max(self._in_flight(), 1) if self.plan.rate_step_per_s else now.hold.users
        turned = ended >= self._turnovers(now) * users
        if turned or horizon - now.ramped_ns > self._slow():
            now.settled_ns = horizon
            if self.plan.rate_step_per_s:  # not before: above capacity it grows and grows
                self._life_ns = (horizon - now.ramped_ns) * users / max(ended, 1)

    def _in_flight(self) -> int:
        """Requests in flight at the horizon, from the records."""
        table = self.records.table(self.horizon_ns, self.horizon_ns).table
        return int((table.is_open & (table.sent_ns >= 0)).sum())

    def _turnovers(self, now: CurrentLevel) -> int:
        hold = now.hold
        before = self.levels[-1].window.users if self.levels else 0
        drained = now.loaded_ns > now.began_ns  # then the load has changed a lot
        nearby = not drained and abs(before - hold.users) <= MAX_RELATIVE_CHANGE * hold.users
        return TURNOVERS_LEAN if nearby or hold.stop == StopRule.lean else TURNOVERS

    def _window(self, now: CurrentLevel, horizon: int, now_ns: int) -> Window:
        settled = now.settled_ns if now.settled_ns >= 0 else now.began_ns
        return Window(
            index=len(self.levels),
            users=now.hold.users,
            purpose=now.hold.purpose,
            chosen_ns=now.began_ns,
            start_ns=now.ramped_ns if now.ramped_ns >= 0 else now.began_ns,
            settled_ns=settled,
            end_ns=max(horizon, settled),
            judged_ns=now_ns,
            rate_per_s=self.plan.rate_of(now.hold.users),
        )

    def _measure(self, now: CurrentLevel, seen: RecordSource, now_ns: int, horizon: int) -> None:
        capped = self._spent(now, now_ns, horizon)
        window = self._window(now, horizon, now_ns)
        evidence = self.last_evidence = gather_evidence(seen, window, self.plan.slos)
        # After a tenth of the time so far: the cost of all evaluations is proportional to it.
        now.next_look_ns = horizon + max(LOOK_NS[evidence.plain], (horizon - now.settled_ns) // 10)
        self._life_ns = evidence.lifetime_ns
        held = pool_evidence(
            [s.evidence for s in self.levels if s.window.users == window.users and not s.invalid]
            + [evidence]
        )
        failing = evidence.errors.sum() > self._hard_share * evidence.ended.sum()
        if failing and self.plan.judge(evidence).decision == Decision.failed:
            self._hard_failed(now, now_ns, horizon)
        elif capped or self._enough(now, evidence, held):
            self._finish(window, seen, evidence, self.plan.judge(held))
            self._advance(now_ns)

    def _hold(self, now: CurrentLevel, now_ns: int, horizon: int) -> None:
        """Hold a given level: its length is fixed, so no token is read while it lasts."""
        hold, length = now.hold, horizon - now.settled_ns
        ended, bad = self.records.ended(now.settled_ns, horizon)
        if not self.plan.rate_step_per_s:
            self._life_ns = hold.users * length / ended if ended else length  # Little's law
        too_many = judge_share(ended, bad, self.plan.max_errors, self.plan.level_alpha)
        if bad > self._hard_share * ended and too_many == Decision.failed:
            self._hard_failed(now, now_ns, horizon)
            return
        end_ns = -1
        if hold.stop == StopRule.time and length >= hold.max_ns:
            end_ns = horizon
        elif hold.stop == StopRule.requests and ended >= hold.max_requests:
            # The window ends when the last of the counted requests was sent; all of them are
            # followed to their ends when the records are complete.
            sent = np.sort(self.records.table(now.settled_ns, horizon).table.sent_ns)
            sent = sent[sent >= now.settled_ns][: hold.max_requests]
            if len(sent) == hold.max_requests:  # exactly that many requests
                end_ns = int(sent[-1])
        elif hold.stop == StopRule.batch and ended >= hold.max_requests:
            batch = self.records.table(now.settled_ns, horizon).table
            now.ramped_ns = now.settled_ns = int(batch.sent_ns.min())
            end_ns = int(batch.done_ns.max())
        if end_ns >= 0:
            self._put_off(self._window(now, end_ns, now_ns))
            self._advance(now_ns)

    def _put_off(self, window: Window) -> None:
        """Keep a given level; it is judged and audited after the run."""
        ended, bad = self.records.ended(window.settled_ns, window.end_ns)
        seconds = max(window.end_ns - window.settled_ns, 1) / SECOND
        ends, errors, tokens = (np.array([float(n)]) for n in (ended, bad, 0))
        empty = Evidence(window, self._life_ns, seconds, (), ends, errors, tokens)
        at_the_end = "judged from the records at the end"
        judgement = Judgement(Decision.held, at_the_end, leans_to_fail=False)
        self._keep(HeldLevel(window, empty, judgement, audited=self.audit is None))

    def _spent(self, now: CurrentLevel, now_ns: int, horizon: int) -> bool:
        """Whether the time is up: the cap with enough requests, twice the cap, or the budget."""
        length = horizon - now.settled_ns
        too_few = self.last_evidence is None or self.last_evidence.window.index != len(self.levels)
        if not too_few and self.last_evidence is not None:
            short = length < _min_lifetimes(now.hold) * self.last_evidence.lifetime_ns
            too_few = short or least_observed(self.last_evidence, self.plan) < CLEARLY_BAD_MIN_N
        # Without enough observations the level may take twice its cap, but never more than the
        # budget.
        over_budget = now_ns - self.began_ns >= self.plan.budget_ns
        return over_budget or length >= now.hold.max_ns * (2 if too_few else 1)

    def _enough(self, now: CurrentLevel, evidence: Evidence, held: Evidence) -> bool:
        """Whether the level may end before its cap."""
        length = evidence.window.end_ns - evidence.window.settled_ns
        if evidence.unstable:  # held longer, it would only leave more behind
            return True
        if now.hold.stop == StopRule.steady:
            enough = evidence.ended.sum() >= CLEARLY_BAD_MIN_N
            return bool(enough and length >= STEADY_LIFETIMES * evidence.lifetime_ns)
        lifetimes = length / max(evidence.lifetime_ns, 1)
        if lifetimes < _min_lifetimes(now.hold) or lacks_scrapes(evidence, self.plan, self.server):
            return False
        decision, lean = self.plan.judge(held).decision, now.hold.stop == StopRule.lean
        # Queues grow slowly near the knee, and where calm lasts no level may end at its calmest.
        outlasted = lean or (lifetimes >= GOOD_LIFETIMES and not evidence.lasting)
        decided = decision == Decision.failed or (decision == Decision.passed and outlasted)
        if now.hold.purpose == Purpose.repeat and not evidence.plain:
            return decided and self.plan.judge(evidence).decision != Decision.inconclusive
        look = evidence.plain and now.hold.purpose == Purpose.bisect  # a side is enough
        decided |= look and self.plan.leans(held) != Decision.inconclusive
        return decided or ((lean or look) and is_far(evidence, self.plan))

    def _finish(
        self, window: Window, seen: RecordSource, evidence: Evidence, judgement: Judgement
    ) -> None:
        why = self.audit(window, seen) if self.audit else ""
        self._recovering = False  # the server answers again
        self._keep(HeldLevel(window, evidence, judgement, why))

    def _keep(self, level: HeldLevel) -> None:
        self.levels.append(level)
        self.now, self.last_evidence = None, None
        self.on_level(level)

    def close(self, now_ns: int, *, data_ended: bool = False) -> None:
        """End the run; a level that was being measured is kept as it is, unless it is a batch.

        `data_ended`: all that there was to send has been sent. It may have been quick: then when
        the level had settled is read from the records, not from when this was noticed.
        """
        now, self.now = self.now, None
        if now is None or self.result is not None or now.hold.stop == StopRule.batch:
            return
        if data_ended and not self.plan.rate_step_per_s:
            self._settle_by_records(now, now_ns)
        if now.settled_ns >= 0 and now_ns > now.settled_ns:
            window = self._window(now, now_ns, now_ns)
            if now.hold.stop in FIXED_LENGTH:
                self._put_off(window)
                return
            seen = self.records.table(now.settled_ns, now_ns)
            evidence = gather_evidence(seen, window, self.plan.slos)
            self._finish(window, seen, evidence, self.plan.judge(evidence))

    def _settle_by_records(self, now: CurrentLevel, now_ns: int) -> None:
        """As the records have it; not at all where nothing was sent after that."""
        table = self.records.table(now.began_ns, now_ns).table
        table = table.select(table.sent_ns >= now.began_ns)
        now.settled_ns = -1
        if not len(table):
            return
        busy = BusyUsers(table)
        ramped = busy.ramped(now.hold.users, now.began_ns)
        settled = busy.settled(ramped, now.hold.users) if ramped >= 0 else None
        if settled is not None and settled < busy.sent[-1]:
            now.ramped_ns, now.settled_ns = ramped, settled

    @property
    def _hard_share(self) -> float:
        """The share of failures that ends a level: half, or --max-errors if that is larger."""
        return max(HARD_FAIL_SHARE, self.plan.max_errors)

    def _hard_fail(self, now: CurrentLevel, since: int, horizon: int) -> bool:
        if now.hold.stop == StopRule.requests:
            ended, bad = self.records.ended(now.began_ns + 1, horizon)
            if bad == ended >= max(now.hold.max_requests, ALL_FAILED):
                return True
        if horizon - now.began_ns < HARD_FAIL_NS:
            return False
        after = max(now.began_ns, horizon - HARD_FAIL_NS)
        ended, bad = self.records.ended(max(after + 1, since), horizon)
        return bad >= HARD_FAIL_MIN_FAILURES and bad > self._hard_share * ended

    def _hard_failed(self, now: CurrentLevel, now_ns: int, horizon: int) -> None:
        """End the level as failed and return to the last level that passed.

        A second hard failure there ends the run, and so does the first one of given levels.
        """
        now.settled_ns = max(now.began_ns, horizon - HARD_FAIL_NS)
        window = self._window(now, horizon, now_ns)
        judgement = Judgement(Decision.failed, HARD_FAILED, leans_to_fail=True)
        seen = self.records.table(now.settled_ns, horizon)  # not audited: then no count adds up
        self._keep(HeldLevel(window, gather_evidence(seen, window, self.plan.slos), judgement))
        # Go back to the highest level that passed below this one, or to the lowest level of all.
        good = [s.window.users for s in self.levels if s.judgement.decision == Decision.passed]
        lower = [g for g in good if g < window.users]
        nowhere = not lower and window.users <= self.plan.min_users
        if self._recovering or nowhere or now.hold.stop in FIXED_LENGTH:
            self.result = Done(Status.target_failed, None)
            return
        self._recovering = True
        back = max(lower, default=self.plan.min_users)
        self.now = CurrentLevel(
            Hold(back, Purpose.down, StopRule.lean, self.plan.budget_ns // 10), now_ns, now_ns
        )
