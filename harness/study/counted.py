"""Everything that results need of single tokens, counted in one way through the record files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.measure.audit import between
from harness.measure.evidence import Judged
from harness.measure.figures import sample_of, spans_of
from harness.measure.gaps import Gaps, together
from harness.measure.interference import GapSample
from harness.measure.metrics import GAPS
from harness.measure.recorded import Known
from harness.measure.summary import Tokens
from harness.measure.walk import walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.evidence import Window
    from harness.measure.figures import Figures
    from harness.measure.gaps import WindowGaps
    from harness.measure.recorded import Recorded
    from harness.measure.samples import ServerSample
    from harness.measure.slo import Slo
    from harness.measure.table import RecordTable
    from harness.measure.walk import Walker


class CountedStep:
    """One step: its requests, and what was counted of its tokens."""

    def __init__(
        self,
        recorded: Recorded,
        window: Window,
        slos: Sequence[Slo],
        samples: Sequence[ServerSample],
        until_ns: int,
    ) -> None:
        """Nothing counted yet; `until_ns`: the next level begins, or the last request has ended."""
        settled = (window.settled_ns, window.end_ns)
        self.span = (window.chosen_ns, until_ns)
        self.known = Known(recorded, *settled)  # what the step is judged by
        self.judged = Judged(self.known.table, window, slos)
        self.table = overlapping(recorded.table, window)  # whose figures are told
        self.tokens = Tokens(self.table, settled)
        sent = recorded.table.sent_ns
        self.sent = recorded.table.select((sent >= window.chosen_ns) & (sent < until_ns))
        # warm-up and drain too
        (span,) = spans_of(self.sent, [self.span])
        self.everything = Gaps(self.sent, span)
        self.scraped = between(window, samples)
        self.sample = GapSample(*settled)

    @property
    def walkers(self) -> list[Walker]:
        """All that look at tokens."""
        gaps: list[Walker] = [*self.tokens.gaps.values(), self.everything]
        return [*gaps, self.tokens.arrived, self.judged, self.scraped, self.sample]


class Counted:
    """The tokens of each step, and of the holds of a level together."""

    def __init__(
        self,
        recorded: Recorded,
        windows: Sequence[Window],
        slos: Sequence[Slo],
        samples: Sequence[ServerSample] = (),
        also: Sequence[Walker] = (),
    ) -> None:
        """Count; `also` sees the tokens too."""
        self.recorded = recorded
        last_ns = max((w.end_ns for w in windows), default=0)
        over_ns = int(recorded.table.done_ns.max(initial=last_ns)) + 1
        untils = [*(w.chosen_ns for w in windows[1:]), over_ns]
        self.steps = {
            w: CountedStep(recorded, w, slos, samples, until)
            for w, until in zip(windows, untils, strict=False)
        }
        walk(recorded, [*(w for step in self.steps.values() for w in step.walkers), *also])
        self.gaps: WindowGaps = {
            (w.settled_ns, w.end_ns): s.tokens.gaps["itl"] for w, s in self.steps.items()
        }

    def level(self, key: str, windows: Sequence[tuple[int, int]]) -> Figures:
        """One latency of these windows of a level together."""
        if key in GAPS:
            held = set(windows)
            steps = [s for w, s in self.steps.items() if (w.settled_ns, w.end_ns) in held]
            return together([step.tokens.gaps[key] for step in steps])
        return sample_of(self.recorded.table, key, spans_of(self.recorded.table, windows))


def overlapping(table: RecordTable, window: Window) -> RecordTable:
    """Requests that were under way in a window."""
    return table.select((table.done_ns >= window.settled_ns) & (table.sent_ns <= window.end_ns))
