"""Results from the record files: statistics of tokens in one pass, and the search once more.

From the windows and records the replay gets to the same levels and the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.core.states import Decision, Purpose, Status
from harness.diagnosis.audit import arrivals_between
from harness.diagnosis.interference import GapSample
from harness.metrics.evidence import (
    Evidence,
    EvidenceCounter,
    Window,
    gather_evidence,
    pool_evidence,
)
from harness.metrics.latency_figures import LatencyFigures, blocked_windows, sample_figures
from harness.metrics.metrics import GAPS
from harness.metrics.record_source import RecordsAsOf, RecordSource
from harness.metrics.scan import EventVisitor, scan
from harness.metrics.token_gaps import WindowGapCounter, WindowGaps, pool_gaps
from harness.metrics.token_positions import PositionCounter
from harness.metrics.window_summary import WindowTokens
from harness.search.controller import HARD_FAILED
from harness.search.judge import Judgement
from harness.search.level_state import HeldLevel, next_level
from harness.search.next_level import Done, SearchPlan

if TYPE_CHECKING:
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
    began = logged[0].window.chosen_ns if logged else 0
    for entry in logged:
        window = entry.window
        # A level of purpose `down` was chosen by the controller after a hard failure, one of `hold`
        # to confirm the answer.
        if searched and window.purpose not in (Purpose.down, Purpose.hold):
            action = next_level(plan, levels, window.chosen_ns - began)
            if isinstance(action, Done) or action.users != window.users:
                now = (
                    f"it would have ended as {action.status}"
                    if isinstance(action, Done)
                    else f"it would hold {action.users}"
                )
                differences.append(
                    f"level {window.index + 1} held {window.users} users; by the records {now}"
                )
        invalid = entry.invalid if entry.audited or audit is None else audit(window)
        evidence, judgement = _judged(plan, levels, window, counted)
        if entry.decision == Decision.held:  # its SLOs are judged by held_levels.py
            judgement = Judgement(Decision.held, "", leans_to_fail=False)
        if entry.reason == HARD_FAILED:  # decided live, from the few requests of ten seconds
            judgement = Judgement(Decision.failed, HARD_FAILED, leans_to_fail=True)
        level = HeldLevel(window, evidence, judgement, invalid)
        if entry.decision != level.judgement.decision and not invalid:
            differences.append(
                f"level {window.index + 1} was {entry.decision}; the records say "
                f"{level.judgement.decision}"
            )
        levels.append(level)
    own = [level for level in levels if not searched or level.window.purpose != Purpose.hold]
    spent = own[-1].window.judged_ns - began if own else 0
    if not searched:
        return Replay(levels, Done(Status.measured, None), differences)
    # If the search would go on, the live run was cut short by its budget or an interrupt.
    end = next_level(plan, own, spent)
    done = end if isinstance(end, Done) else Done(Status.inconclusive, None)
    return Replay(levels, done, differences)


def _judged(
    plan: SearchPlan, before: Sequence[HeldLevel], window: Window, counted: RunTokenStats
) -> tuple[Evidence, Judgement]:
    level = counted.levels[window]
    evidence = gather_evidence(level.known, window, plan.slos, level.judged)
    same = [s.evidence for s in before if s.window.users == window.users and not s.invalid]
    return evidence, plan.judge(pool_evidence([*same, evidence]))


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
        settled = (window.settled_ns, window.end_ns)
        self.span = (window.chosen_ns, until_ns)
        self.known = RecordsAsOf(recorded, *settled)  # the records on which the decision was made
        self.judged = EvidenceCounter(self.known.table, window, slos)
        # the requests whose figures are reported
        self.table = requests_in_window(recorded.table, window)
        self.tokens = WindowTokens(self.table, settled)
        sent = recorded.table.sent_ns
        self.sent = recorded.table.select((sent >= window.chosen_ns) & (sent < until_ns))
        # Includes warm-up and drain.
        (span,) = blocked_windows(self.sent, [self.span])
        self.everything = WindowGapCounter(self.sent, span)
        self.scraped = arrivals_between(window, samples)
        self.sample = GapSample(*settled)
        self.positions = PositionCounter(*settled)
        rows, span = self.table.mix_row, self.tokens.gaps["itl"].span
        mix = [(n, self.table.select(rows == n)) for n in range(rows.max(initial=-1) + 1)]
        self.mix = [(of, WindowGapCounter(of, span, mix_row=n)) for n, of in mix]

    @property
    def visitors(self) -> list[EventVisitor]:
        rows = [gaps for _, gaps in self.mix]
        gaps: list[EventVisitor] = [*self.tokens.gaps.values(), self.everything, *rows]
        gaps += [self.tokens.arrived, self.judged, self.scraped, self.sample]
        return [*gaps, self.positions]


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
        last_ns = max((w.end_ns for w in windows), default=0)
        over_ns = int(recorded.table.done_ns.max(initial=last_ns)) + 1
        # Each level owns the requests sent from its choice to that of the next one.
        untils = [*(w.chosen_ns for w in windows[1:]), over_ns]
        self.levels = {
            w: LevelTokenStats(recorded, w, slos, samples, until)
            for w, until in zip(windows, untils, strict=False)
        }
        # One pass over the record files feeds all visitors of all levels.
        scan(recorded, [*(w for level in self.levels.values() for w in level.visitors), *also])
        self.gaps: WindowGaps = {
            (w.settled_ns, w.end_ns): s.tokens.gaps["itl"] for w, s in self.levels.items()
        }

    def level(self, key: str, windows: Sequence[tuple[int, int]]) -> LatencyFigures:
        """One latency over all these windows of a level."""
        if key in GAPS:
            held = set(windows)
            levels = [s for w, s in self.levels.items() if (w.settled_ns, w.end_ns) in held]
            return pool_gaps([level.tokens.gaps[key] for level in levels])
        return sample_figures(
            self.recorded.table, key, blocked_windows(self.recorded.table, windows)
        )


def requests_in_window(table: RecordTable, window: Window) -> RecordTable:
    """The requests in flight at any time in the window."""
    return table.select((table.done_ns >= window.settled_ns) & (table.sent_ns <= window.end_ns))
