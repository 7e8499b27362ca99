"""Holds one level after another: ticked some times a second, in real or simulated time alike.

A level has three phases. *Ramp* lasts until all users of the level have started and are busy.
*Settle* lasts until two requests per user have ended since, so that the old load and the burst of
the ramp are gone; one request is enough after a small change or on the way up, and three request
lifetimes end the phase where a long queue slows turnover. A level on the way up whose latencies
were at a tenth of their limits meanwhile has shown enough by then.
*Measure* lasts until the sequential test decides or the level's time is up. A decision uses only
what happened before a horizon by which every record has arrived, so the run folder can repeat it.

The load drains to zero before and after the first repeat of a level. vLLM records TTFT at the
first token and its parts at the end of a request, so both describe the same requests only between
two instants without any request in flight (diagnosis/cohort.py). More drains would take
time from the search: of 200 simulated knees it found 2% fewer when it drained for every repeat.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.states import Decision, Purpose, Status, StopRule
from harness.load.arrivals import LoadTarget
from harness.metrics.evidence import Evidence, Window, gather_evidence
from harness.metrics.ledger import waiting_or_thinking
from harness.search.busy_users import BUSY_SHARE, TURNOVERS, BusyUsers
from harness.search.judge import Judgement, judge_share, progress
from harness.search.level_state import (
    CLEARLY_BAD_MIN_N,
    CurrentLevel,
    Drain,
    HeldLevel,
    is_far,
    is_overloaded,
    is_very_far,
    lacks_scrapes,
    least_observed,
    next_level,
    should_drain,
    with_earlier_holds,
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
# A level that is to pass, or to fail, is given up where, after this part of its time, it has shown
# less than this share of what would then be due.
HOPE_FROM: Final = 0.4
HOPE: Final = 0.5
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
        self.began_ns = -1
        self.horizon_ns = -1
        self.now: CurrentLevel | None = None
        self.last_evidence: Evidence | None = None  # the latest figures of the current level
        self._life_ns = 0.0  # mean time of a request in flight
        self._think_ns = 0.0  # mean planned pause after it
        self._recovering = False
        self._emptied: dict[int, int] = {}  # count of a drained level -> its index
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
        last_horizon_ns = self.horizon_ns
        # The horizon never moves back, and records that are far too late do not hold it up.
        known_ns = now_ns - LAG_NS if known_ns is None else known_ns
        self.horizon_ns = max(known_ns, last_horizon_ns, now_ns - MAX_LAG_NS)
        if self.result is None and self.now is None:
            self._advance(now_ns)
        if self.now is not None:
            if self.now.drain is not None:
                self._drain(self.now, self.now.drain, now_ns, running_users)
            elif self.horizon_ns > last_horizon_ns:
                self._observe(self.now, now_ns, running_users)
        return self._load_target(running_users)

    @property
    def _by_schedule(self) -> bool:
        """Whether requests are sent whatever the server does: an open loop."""
        return self.plan.unit.by_schedule

    def _load_target(self, running_users: int) -> LoadTarget:
        if self.result is not None or self.now is None:
            return LoadTarget(0, 1.0, done=True)
        load = self.now.hold.load
        drains = self.now.drain is not None
        if self._by_schedule:
            return LoadTarget(0, 1.0, pace=(len(self.levels), 0.0 if drains else load.rate_per_s))
        return LoadTarget(0 if drains else load.users, float(max(load.users, running_users, 1)))

    def _advance(self, now_ns: int) -> None:
        action = self.choose(self.plan, self.levels, now_ns - self.began_ns)
        if isinstance(action, Done):
            self.result = action
            return
        self.now = CurrentLevel(action, now_ns, now_ns)
        last_count = self.levels[-1].window.load.count if self.levels else 0
        # A drained level is drained at both ends: `opens` before its first repeat, `closes` when
        # the next level begins.
        closes = self._emptied.get(last_count) == len(self.levels) - 1
        plain = all(level.evidence.plain for level in self.levels)
        pays = should_drain(action, self._life_ns, self.server, plain=plain)
        opens = pays and action.load.count not in self._emptied
        is_batch = action.stop == StopRule.batch
        leaves_backlog = self._by_schedule and action.load.count < last_count
        if leaves_backlog or (self._drains and (opens or closes)):
            self.now.drain = Drain(now_ns, self._slow_ns(), batch=is_batch or leaves_backlog)
            if opens and not is_batch:
                self._emptied[action.load.count] = len(self.levels)

    def _drain(self, now: CurrentLevel, drain: Drain, now_ns: int, running_users: int) -> None:
        if self._by_schedule:
            # Only records that reach this level say what is left of the one before.
            is_recorded = self.horizon_ns > now.began_ns + SECOND
            running_users = self._in_flight() if is_recorded else 1
        is_empty = drain.over(now_ns, running_users, self.server)
        # A server that never becomes empty has other clients, so later levels do not try again.
        self._drains = is_empty or not drain.late(now_ns)
        if is_empty or not self._drains:
            now.drain = None
            now.loaded_ns = now_ns
            if now.hold.stop == StopRule.batch:  # it has no warm-up
                now.ramped_ns = now_ns
                now.settled_ns = now_ns

    def _observe(self, now: CurrentLevel, now_ns: int, running_users: int) -> None:
        horizon_ns = self.horizon_ns
        is_settled = now.settled_ns >= 0
        # Before the level has settled only the last ten seconds matter, for the hard-failure check.
        since_ns = now.settled_ns if is_settled else now.began_ns - 10 * SECOND
        if self._fails_hard(now, since_ns, horizon_ns):
            self._hard_failed(now, now_ns, horizon_ns)
            return
        if is_settled and now.hold.stop in FIXED_LENGTH:
            self._hold(now, now_ns, horizon_ns)
            return
        # Evaluating a level reads all of its tokens, so those of a settled level are spaced out.
        is_due = not is_settled or horizon_ns >= now.next_look_ns
        if not is_due and not self._spent(now, now_ns, horizon_ns):
            return
        if is_settled:
            self._measure(now, self.records.table(since_ns, horizon_ns), now_ns, horizon_ns)
        elif now.ramped_ns >= 0:
            self._settle(now, now_ns, horizon_ns)
        else:
            table = self.records.table(since_ns, horizon_ns).table
            self._ramp(now, table, horizon_ns, running_users)

    def _ramp(
        self, now: CurrentLevel, table: RecordTable, horizon_ns: int, running_users: int
    ) -> None:
        busy_users, self._think_ns = waiting_or_thinking(table, horizon_ns)
        waited_ns = horizon_ns - now.loaded_ns
        # A long queue at the server can keep users from being busy, so a long wait is enough.
        is_slow = waited_ns > self._slow_ns()
        if self._by_schedule:
            is_sending = bool((table.sent_ns > now.loaded_ns + RATE_LEAD_NS).any())
            is_ramped = is_sending or is_slow
        else:
            users = now.hold.load.users
            are_there = running_users == users and waited_ns > 0
            is_ramped = are_there and (busy_users >= BUSY_SHARE * users or is_slow)
        if is_ramped:
            now.ramped_ns = horizon_ns

    def _slow_ns(self) -> float:
        """Longest wait for the load to build up: three requests and pauses, as last measured."""
        return 3 * (self._life_ns + self._think_ns) if self._life_ns else 30.0 * SECOND

    def _settle(self, now: CurrentLevel, now_ns: int, horizon_ns: int) -> None:
        ended, _ = self.records.ended(now.ramped_ns + 1, horizon_ns)
        concurrency = max(self._in_flight(), 1) if self._by_schedule else now.hold.load.users
        since_ramp_ns = horizon_ns - now.ramped_ns
        has_turned_over = ended >= self._turnovers(now) * concurrency
        if has_turned_over and self._ends_unsettled(now, now_ns):
            return
        if has_turned_over or since_ramp_ns > self._slow_ns():
            now.settled_ns = horizon_ns
            if self._by_schedule:  # not before: above capacity it grows and grows
                self._life_ns = since_ramp_ns * concurrency / max(ended, 1)  # Little's law

    def _ends_unsettled(self, now: CurrentLevel, now_ns: int) -> bool:
        """End a level on the way up that is far from all limits even with the burst of its ramp."""
        if now.hold.purpose != Purpose.up or self._by_schedule or not self.plan.slos:
            return False
        records = self.records.table(now.ramped_ns, self.horizon_ns)
        window = replace(self._window(now, self.horizon_ns, now_ns), settled_ns=now.ramped_ns)
        evidence = gather_evidence(records, window, self.plan.slos)
        if not is_very_far(evidence, self.plan):
            return False
        self._life_ns = evidence.lifetime_ns
        self._finish(window, records, evidence, self.plan.judge(evidence))
        self._advance(now_ns)
        return True

    def _in_flight(self) -> int:
        """Requests in flight at the horizon, from the records."""
        table = self.records.table(self.horizon_ns, self.horizon_ns).table
        return int((table.is_open & (table.sent_ns >= 0)).sum())

    def _turnovers(self, now: CurrentLevel) -> int:
        hold = now.hold
        count = hold.load.count
        last_count = self.levels[-1].window.load.count if self.levels else 0
        was_drained = now.loaded_ns > now.began_ns  # then the load has changed a lot
        is_near = abs(last_count - count) <= MAX_RELATIVE_CHANGE * count
        is_small_change = is_near and not was_drained
        return TURNOVERS_LEAN if is_small_change or hold.stop == StopRule.lean else TURNOVERS

    def _window(self, now: CurrentLevel, end_ns: int, now_ns: int) -> Window:
        start_ns = now.ramped_ns if now.ramped_ns >= 0 else now.began_ns
        settled_ns = now.settled_ns if now.settled_ns >= 0 else now.began_ns
        return Window(
            index=len(self.levels),
            load=now.hold.load,
            purpose=now.hold.purpose,
            chosen_ns=now.began_ns,
            start_ns=start_ns,
            settled_ns=settled_ns,
            end_ns=max(end_ns, settled_ns),
            judged_ns=now_ns,
        )

    def _measure(
        self, now: CurrentLevel, records: RecordSource, now_ns: int, horizon_ns: int
    ) -> None:
        is_spent = self._spent(now, now_ns, horizon_ns)
        window = self._window(now, horizon_ns, now_ns)
        evidence = gather_evidence(records, window, self.plan.slos)
        self.last_evidence = evidence
        self._life_ns = evidence.lifetime_ns
        # After a tenth of the time so far: the cost of all evaluations is proportional to it.
        wait_ns = max(LOOK_NS[evidence.plain], (horizon_ns - now.settled_ns) // 10)
        now.next_look_ns = horizon_ns + wait_ns
        pooled = with_earlier_holds(evidence, self.levels)
        mostly_fails = evidence.errors.sum() > self._hard_share * evidence.ended.sum()
        if mostly_fails and self.plan.judge(evidence).decision == Decision.failed:
            self._hard_failed(now, now_ns, horizon_ns)
        elif is_spent or self._enough(now, evidence, pooled):
            self._finish(window, records, evidence, self.plan.judge(pooled))
            self._advance(now_ns)

    def _hold(self, now: CurrentLevel, now_ns: int, horizon_ns: int) -> None:
        """Hold a given level: its length is fixed, so no token is read while it lasts."""
        length_ns = horizon_ns - now.settled_ns
        ended, failed = self.records.ended(now.settled_ns, horizon_ns)
        if not self._by_schedule:
            # Little's law
            self._life_ns = now.hold.load.users * length_ns / ended if ended else length_ns
        decision = judge_share(ended, failed, self.plan.max_errors, self.plan.level_alpha)
        if failed > self._hard_share * ended and decision == Decision.failed:
            self._hard_failed(now, now_ns, horizon_ns)
            return
        end_ns = self._end_of_hold(now, ended, horizon_ns)
        if end_ns is not None:
            self._put_off(self._window(now, end_ns, now_ns))
            self._advance(now_ns)

    def _end_of_hold(self, now: CurrentLevel, ended: int, horizon_ns: int) -> int | None:
        """When a given level ended, of whose requests so many have; None: it has not yet."""
        hold = now.hold
        if hold.stop == StopRule.time:
            return horizon_ns if horizon_ns - now.settled_ns >= hold.max_ns else None
        if ended < hold.max_requests:
            return None
        table = self.records.table(now.settled_ns, horizon_ns).table
        if hold.stop == StopRule.batch:
            first_sent_ns = int(table.sent_ns.min())
            now.ramped_ns = first_sent_ns
            now.settled_ns = first_sent_ns
            return int(table.done_ns.max())
        # The window ends when the last of the counted requests was sent; all of them are followed
        # to their ends when the records are complete.
        sent_ns = np.sort(table.sent_ns)
        counted_ns = sent_ns[sent_ns >= now.settled_ns][: hold.max_requests]
        return int(counted_ns[-1]) if len(counted_ns) == hold.max_requests else None

    def _put_off(self, window: Window) -> None:
        """Keep a given level; it is judged and audited after the run."""
        ended, failed = self.records.ended(window.settled_ns, window.end_ns)
        evidence = Evidence(
            window,
            self._life_ns,
            seconds=max(window.end_ns - window.settled_ns, 1) / SECOND,
            grids=(),
            ended=np.array([float(ended)]),
            errors=np.array([float(failed)]),
            tokens=np.array([0.0]),
        )
        at_the_end = "judged from the records at the end"
        judgement = Judgement(Decision.held, at_the_end, leans_to_fail=False)
        self._keep(HeldLevel(window, evidence, judgement, audited=self.audit is None))

    def _spent(self, now: CurrentLevel, now_ns: int, horizon_ns: int) -> bool:
        """Whether the time is up: the cap with enough requests, twice the cap, or the budget."""
        if now_ns - self.began_ns >= self.plan.budget_ns:
            return True
        length_ns = horizon_ns - now.settled_ns
        # Without enough observations the level may take twice its cap, but never more than the
        # budget.
        caps = 1 if self._observed_enough(now, length_ns) else 2
        return length_ns >= now.hold.max_ns * caps

    def _observed_enough(self, now: CurrentLevel, length_ns: int) -> bool:
        """Whether the level, held so long, was looked at and showed enough to be ended."""
        evidence = self.last_evidence
        if evidence is None or evidence.window.index != len(self.levels):
            return False
        if length_ns < _min_lifetimes(now.hold) * evidence.lifetime_ns:
            return False
        return least_observed(evidence, self.plan) >= CLEARLY_BAD_MIN_N

    def _enough(self, now: CurrentLevel, evidence: Evidence, pooled: Evidence) -> bool:
        """Whether the level may end before its cap; `pooled`: with its earlier holds."""
        if evidence.unstable:  # held longer, it would only leave more behind
            return True
        length_ns = evidence.window.end_ns - evidence.window.settled_ns
        if now.hold.stop == StopRule.steady:
            is_long = length_ns >= STEADY_LIFETIMES * evidence.lifetime_ns
            return bool(is_long and evidence.ended.sum() >= CLEARLY_BAD_MIN_N)
        lifetimes = length_ns / max(evidence.lifetime_ns, 1)
        is_lean = now.hold.stop == StopRule.lean
        is_long = lifetimes >= _min_lifetimes(now.hold)
        may_end = is_long or (is_lean and is_overloaded(evidence, self.plan))
        if not may_end or lacks_scrapes(evidence, self.plan, self.server):
            return False
        is_decided = self._is_decided(now.hold, evidence, pooled, lifetimes)
        if now.hold.purpose == Purpose.repeat and not evidence.plain:
            # each hold by itself, too
            return is_decided and self.plan.judge(evidence).decision != Decision.inconclusive
        is_over = is_decided or self._is_hopeless(now.hold, pooled, length_ns)
        is_look = evidence.plain and now.hold.purpose == Purpose.bisect  # a side is enough
        if is_over or (is_look and self.plan.leans(pooled) != Decision.inconclusive):
            return True
        may_go_on = is_look or is_lean
        return may_go_on and is_far(evidence, self.plan)

    def _is_hopeless(self, hold: Hold, pooled: Evidence, length_ns: int) -> bool:
        """Whether a level leans to the other side than it is to show, or is too slow to show it."""
        if hold.wants is None:
            return False
        part = length_ns / hold.max_ns
        due = HOPE * part
        plan = self.plan
        if part > HOPE_FROM and progress(pooled, plan.slos, plan.level_alpha, hold.wants) < due:
            return True
        return plan.leans(pooled) not in (Decision.inconclusive, hold.wants)

    def _is_decided(
        self, hold: Hold, evidence: Evidence, pooled: Evidence, lifetimes: float
    ) -> bool:
        """Whether the sequential test has decided, and may do so after as many lifetimes."""
        decision = self.plan.judge(pooled).decision
        if decision != Decision.passed:
            return decision == Decision.failed
        if hold.stop == StopRule.lean:
            return True
        # Queues grow slowly near the knee, and where calm lasts no level may end at its calmest.
        return lifetimes >= GOOD_LIFETIMES and not evidence.lasting

    def _finish(
        self, window: Window, records: RecordSource, evidence: Evidence, judgement: Judgement
    ) -> None:
        why = self.audit(window, records) if self.audit else ""
        self._recovering = False  # the server answers again
        self._keep(HeldLevel(window, evidence, judgement, why))

    def _keep(self, level: HeldLevel) -> None:
        self.levels.append(level)
        self.now = None
        self.last_evidence = None
        self.on_level(level)

    def close(self, now_ns: int, *, data_ended: bool = False) -> None:
        """End the run; a level that was being measured is kept as it is, unless it is a batch.

        `data_ended`: all that there was to send has been sent. It may have been quick: then when
        the level had settled is read from the records, not from when this was noticed.
        """
        now = self.now
        self.now = None
        if now is None or self.result is not None or now.hold.stop == StopRule.batch:
            return
        if data_ended and not self._by_schedule:
            self._settle_by_records(now, now_ns)
        if now.settled_ns >= 0 and now_ns > now.settled_ns:
            window = self._window(now, now_ns, now_ns)
            if now.hold.stop in FIXED_LENGTH:
                self._put_off(window)
                return
            records = self.records.table(now.settled_ns, now_ns)
            evidence = gather_evidence(records, window, self.plan.slos)
            self._finish(window, records, evidence, self.plan.judge(evidence))

    def _settle_by_records(self, now: CurrentLevel, now_ns: int) -> None:
        """As the records have it; not at all where nothing was sent after that."""
        table = self.records.table(now.began_ns, now_ns).table
        table = table.select(table.sent_ns >= now.began_ns)
        now.settled_ns = -1
        if not len(table):
            return
        busy = BusyUsers(table)
        users = now.hold.load.users
        ramped = busy.ramped(users, now.began_ns)
        settled = busy.settled(ramped, users) if ramped >= 0 else None
        if settled is not None and settled < busy.sent[-1]:
            now.ramped_ns = ramped
            now.settled_ns = settled

    @property
    def _hard_share(self) -> float:
        """The share of failures that ends a level: half, or --max-errors if that is larger."""
        return max(HARD_FAIL_SHARE, self.plan.max_errors)

    def _fails_hard(self, now: CurrentLevel, since_ns: int, horizon_ns: int) -> bool:
        if now.hold.stop == StopRule.requests:
            ended, failed = self.records.ended(now.began_ns + 1, horizon_ns)
            if failed == ended >= max(now.hold.max_requests, ALL_FAILED):
                return True
        if horizon_ns - now.began_ns < HARD_FAIL_NS:
            return False
        after_ns = max(now.began_ns, horizon_ns - HARD_FAIL_NS)
        from_ns = max(after_ns + 1, since_ns)
        ended, failed = self.records.ended(from_ns, horizon_ns)
        return failed >= HARD_FAIL_MIN_FAILURES and failed > self._hard_share * ended

    def _hard_failed(self, now: CurrentLevel, now_ns: int, horizon_ns: int) -> None:
        """End the level as failed and return to the last level that passed.

        A second hard failure there ends the run, and so does the first one of given levels.
        """
        now.settled_ns = max(now.began_ns, horizon_ns - HARD_FAIL_NS)
        window = self._window(now, horizon_ns, now_ns)
        records = self.records.table(now.settled_ns, horizon_ns)
        evidence = gather_evidence(records, window, self.plan.slos)
        judgement = Judgement(Decision.failed, HARD_FAILED, leans_to_fail=True)
        # Not audited: after so many failures no count adds up.
        self._keep(HeldLevel(window, evidence, judgement))
        # Go back to the highest level that passed below this one, or to the lowest level of all.
        passed = [level for level in self.levels if level.judgement.decision == Decision.passed]
        passed_below = [x.window.load.count for x in passed if x.window.load < window.load]
        is_lowest = not passed_below and window.load.count <= self.plan.min_users
        if self._recovering or is_lowest or now.hold.stop in FIXED_LENGTH:
            self.result = Done(Status.target_failed, None)
            return
        self._recovering = True
        load = self.plan.unit.of_count(max(passed_below, default=self.plan.min_users))
        hold = Hold(load, Purpose.down, StopRule.lean, self.plan.budget_ns // 10)
        self.now = CurrentLevel(hold, now_ns, now_ns)
