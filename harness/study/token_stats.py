"""All statistics of single tokens that results need, from one pass over the record files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.measure.diagnosis.audit import arrivals_between
from harness.measure.diagnosis.interference import GapSample
from harness.measure.latency_figures import LatencyFigures, blocked_windows, sample_figures
from harness.measure.metrics import GAPS
from harness.measure.records.record_source import RecordsAsOf, RecordSource
from harness.measure.records.scan import EventVisitor, scan
from harness.measure.records.token_gaps import WindowGapCounter, WindowGaps, pool_gaps
from harness.measure.search.evidence import EvidenceCounter, Window
from harness.measure.window_summary import WindowTokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.records.record_table import RecordTable
    from harness.measure.records.samples import ServerSample
    from harness.measure.slo import Slo


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

    @property
    def visitors(self) -> list[EventVisitor]:
        """Everything that must see each token."""
        gaps: list[EventVisitor] = [*self.tokens.gaps.values(), self.everything]
        return [*gaps, self.tokens.arrived, self.judged, self.scraped, self.sample]


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
