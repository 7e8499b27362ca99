"""Results from the record files: statistics of tokens in one pass, and the search once more.

From the windows and records the replay gets to the same levels and the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from harness.core.freed_memory import give_back
from harness.core.states import Decision, Purpose, Status
from harness.diagnosis.audit import arrivals_between
from harness.diagnosis.interference import GapSample
from harness.metrics.evidence import (
    EvidenceCounter,
    Window,
    gather_evidence,
)
from harness.metrics.latency_figures import LatencyFigures, blocked_windows, sample_figures
from harness.metrics.metrics import GAPS
from harness.metrics.record_source import RecordsAsOf, RecordSource
from harness.metrics.scan import EventVisitor, scan
from harness.metrics.token_gaps import Group, WindowGapCounter, WindowGaps, pool_gaps
from harness.metrics.token_positions import PositionCounter
from harness.metrics.window_summary import WindowTokens
from harness.search.controller import HARD_FAILED
from harness.search.judge import Judgement
from harness.search.level_state import AFTER_SEARCH, HeldLevel, next_level, with_earlier_holds
from harness.search.next_level import Done, Hold, SearchPlan

if TYPE_CHECKING:
    from harness.core.arrays import Ints
    from harness.metrics.slo import Slo
    from harness.records.record_table import RecordTable
    from harness.records.samples import ServerSample


@dataclass(frozen=True, slots=True)
class LoggedLevel:
    """A line of levels.jsonl: the window of a level, and why it is invalid ('' if it is valid)."""

    window: Window
    invalid: str
    decision: str  # as the live run took it
    audited: bool = True  # False: the audit has not run yet
    reason: str = ""  # for the decision


@dataclass(frozen=True, slots=True)
class Replay:
    """The recomputed levels, the end of the search, and how it differs from the live run."""

    levels: list[HeldLevel]
    done: Done
    differences: list[str]


def replay(
    plan: SearchPlan,
    logged: Sequence[LoggedLevel],
    counted: RunTokenStats,
    *,
    searched: bool = True,
    audit: Callable[[Window], str] | None = None,
) -> Replay:
    """Recompute the evidence and decision of each window, and ask the search at each turn.

    `counted` has the windows of `logged`; `audit` returns why a level that was not audited yet is
    invalid. `searched` is False if the levels were given (`run`, `sweep`).
    """
    levels: list[HeldLevel] = []
    differences: list[str] = []
    began_ns = logged[0].window.chosen_ns if logged else 0
    for entry in logged:
        window = entry.window
        # A level of purpose `down` was chosen by the controller after a hard failure, those of
        # AFTER_SEARCH once the search had ended.
        if searched and window.purpose not in (Purpose.down, *AFTER_SEARCH):
            action = next_level(plan, levels, window.chosen_ns - began_ns)
            if isinstance(action, Done) or action.load != window.load:
                differences.append(_other_choice(window, action))
        level = _replayed_level(plan, levels, entry, counted, audit)
        decision = level.judgement.decision
        if entry.decision != decision and not level.invalid:
            differences.append(
                f"level {window.index + 1} was {entry.decision}; the records say {decision}"
            )
        levels.append(level)
        counted.levels[window].known.forget_table()  # as large as all that is reported of it
    done = Done(Status.measured, None)
    if searched:
        done = _end_of_search(plan, levels, began_ns)
    return Replay(levels, done, differences)


def _end_of_search(plan: SearchPlan, levels: Sequence[HeldLevel], began_ns: int) -> Done:
    own = [level for level in levels if level.window.purpose not in AFTER_SEARCH]
    spent_ns = own[-1].window.judged_ns - began_ns if own else 0
    action = next_level(plan, own, spent_ns)
    # If the search would go on, the live run was cut short by its budget or an interrupt.
    return action if isinstance(action, Done) else Done(Status.inconclusive, None)


def _other_choice(window: Window, action: Hold | Done) -> str:
    if isinstance(action, Done):
        by_records = f"it would have ended as {action.status}"
    else:
        by_records = f"it would hold {action.load.number}"
    return f"level {window.index + 1} held {window.load}; by the records {by_records}"


def _replayed_level(
    plan: SearchPlan,
    before: Sequence[HeldLevel],
    entry: LoggedLevel,
    counted: RunTokenStats,
    audit: Callable[[Window], str] | None,
) -> HeldLevel:
    """A logged level as it is by the records; `before`: the levels before it."""
    window = entry.window
    invalid = entry.invalid
    if not entry.audited and audit is not None:
        invalid = audit(window)
    stats = counted.levels[window]
    evidence = gather_evidence(stats.known, window, plan.slos, stats.judged)
    if entry.decision == Decision.held:  # its SLOs are judged by held_levels.py
        judgement = Judgement(Decision.held, "", leans_to_fail=False)
    else:
        judgement = plan.judge(with_earlier_holds(evidence, before))
    if entry.reason == HARD_FAILED:  # decided live, from the few requests of ten seconds
        judgement = Judgement(Decision.failed, HARD_FAILED, leans_to_fail=True)
    return HeldLevel(window, evidence, judgement, invalid)


MOST_NAMES: Final = 20  # in a level's table: each costs a part of the one pass over all tokens


class RequestGroup(NamedTuple):
    """Some of a level's reported requests, and the gaps between their tokens."""

    group: Group
    requests: RecordTable
    gaps: WindowGapCounter


def names_apart(names: Ints) -> list[list[int]]:
    """The numbers of names that are reported each by itself, the most frequent first.

    The last ones are together if there are too many. [] if no request has a name.
    """
    numbers, counts = np.unique(names, return_counts=True)
    if numbers.max(initial=-1) < 0:
        return []
    by_count = numbers[np.argsort(-counts, kind="stable")].tolist()
    apart = [[number] for number in by_count[:MOST_NAMES]]
    others = by_count[MOST_NAMES:]
    return [*apart, others] if others else apart


class LevelTokenStats:
    """The requests of one level and the statistics of their tokens."""

    def __init__(
        self,
        recorded: RecordSource,
        window: Window,
        slos: Sequence[Slo],
        samples: Sequence[ServerSample],
        until_ns: int,
    ) -> None:
        """`until_ns`: when the next level begins, or the last request has ended."""
        settled_span = (window.settled_ns, window.end_ns)
        self.span = (window.chosen_ns, until_ns)
        # The requests whose figures are reported.
        self.table = requests_in_window(recorded.table, window)
        # The records on which the decision was made.
        self.known = RecordsAsOf(recorded, *settled_span, self.table)
        self.judged = EvidenceCounter(self.known.table, window, slos)
        self.tokens = WindowTokens(self.table, settled_span)
        # All requests sent for the level: warm-up and drain, too.
        sent_ns = recorded.table.sent_ns
        was_sent = (sent_ns >= window.chosen_ns) & (sent_ns < until_ns)
        self.sent = recorded.table.select(was_sent)
        (whole_span,) = blocked_windows(self.sent, [self.span])
        self.everything = WindowGapCounter(self.sent, whole_span)
        self.scraped = arrivals_between(window, samples)
        self.sample = GapSample(*settled_span)
        self.positions = PositionCounter(*settled_span)
        n_rows = int(self.table.mix_row.max(initial=-1)) + 1
        self.mix = [self._group("mix_row", [row]) for row in range(n_rows)]
        self.names = [self._group("name", some) for some in names_apart(self.table.name)]

    def _group(self, column: str, values: Sequence[int]) -> RequestGroup:
        group = Group(column, np.array(values))
        requests = self.table.select(group.rows(self.table))
        gaps = WindowGapCounter(requests, self.tokens.gaps["itl"].span, group=group)
        return RequestGroup(group, requests, gaps)

    @property
    def visitors(self) -> list[EventVisitor]:
        gaps_of_groups = [group.gaps for group in (*self.mix, *self.names)]
        return [
            *self.tokens.gaps.values(),
            self.everything,
            *gaps_of_groups,
            self.tokens.arrived,
            self.judged,
            self.scraped,
            self.sample,
            self.positions,
        ]


class RunTokenStats:
    """Token statistics of each level, and of all holds of a level together."""

    def __init__(
        self,
        recorded: RecordSource,
        windows: Sequence[Window],
        slos: Sequence[Slo],
        samples: Sequence[ServerSample] = (),
        also: Sequence[EventVisitor] = (),
    ) -> None:
        """Reads all tokens once; `also` are further visitors of the same pass."""
        self.recorded = recorded
        last_end_ns = max((window.end_ns for window in windows), default=0)
        over_ns = int(recorded.table.done_ns.max(initial=last_end_ns)) + 1
        # Each level owns the requests sent from its choice to that of the next one.
        until_ns = [*(window.chosen_ns for window in windows[1:]), over_ns]
        self.levels: dict[Window, LevelTokenStats] = {}
        for window, until in zip(windows, until_ns, strict=False):
            self.levels[window] = LevelTokenStats(recorded, window, slos, samples, until)
        give_back()
        # One pass over the record files feeds all visitors of all levels.
        visitors = [visitor for level in self.levels.values() for visitor in level.visitors]
        scan(recorded, [*visitors, *also])
        self.gaps: WindowGaps = {}
        for window, level in self.levels.items():
            self.gaps[window.settled_ns, window.end_ns] = level.tokens.gaps["itl"]

    def level(self, key: str, windows: Sequence[tuple[int, int]]) -> LatencyFigures:
        """One latency over all these windows of a level."""
        if key not in GAPS:
            table = self.recorded.table
            return sample_figures(table, key, blocked_windows(table, windows))
        gaps = []
        for window, stats in self.levels.items():
            if (window.settled_ns, window.end_ns) in windows:
                gaps.append(stats.tokens.gaps[key])
        return pool_gaps(gaps)


def requests_in_window(table: RecordTable, window: Window) -> RecordTable:
    """The requests in flight at any time in the window."""
    in_flight = (table.done_ns >= window.settled_ns) & (table.sent_ns <= window.end_ns)
    return table.select(in_flight)
