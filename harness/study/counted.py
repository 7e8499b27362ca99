"""Everything that results need of single tokens, counted in two ways through the record files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.measure.audit import between
from harness.measure.evidence import Judged
from harness.measure.figures import sample_of, spans_of
from harness.measure.gaps import Gaps, count_gaps
from harness.measure.interference import Drawn
from harness.measure.recorded import Known
from harness.measure.summary import Tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.evidence import Window
    from harness.measure.figures import Figures
    from harness.measure.recorded import Recorded
    from harness.measure.samples import ServerSample
    from harness.measure.slo import Slo
    from harness.measure.table import RecordTable
    from harness.measure.walk import Arrivals

Spans = tuple[tuple[int, int], ...]  # (settled_ns, end_ns) of steps


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
        span = (window.settled_ns, window.end_ns)
        self.span = (window.chosen_ns, until_ns)
        self.known = Known(recorded, *span)  # what the step is judged by
        self.judged = Judged(self.known.table, window, slos)
        self.table = overlapping(recorded.table, window)  # whose figures are told
        self.tokens = Tokens(self.table, span, [slo.q for slo in slos])
        sent = recorded.table.sent_ns
        self.sent = recorded.table.select((sent >= window.chosen_ns) & (sent < until_ns))
        self.everything = Gaps(self.sent, spans_of(self.sent, [self.span]))  # warm-up and drain too
        self.scraped: Arrivals = between(window, samples)
        self.drawn = Drawn(*span)


class Counted:
    """The tokens of each step, and of levels held more than once."""

    def __init__(
        self,
        recorded: Recorded,
        windows: Sequence[Window],
        slos: Sequence[Slo],
        samples: Sequence[ServerSample] = (),
    ) -> None:
        """Count."""
        self.recorded = recorded
        last_ns = max((w.end_ns for w in windows), default=0)
        over_ns = int(recorded.table.done_ns.max(initial=last_ns)) + 1
        untils = [*(w.chosen_ns for w in windows[1:]), over_ns]
        self.steps = {
            w: CountedStep(recorded, w, slos, samples, until)
            for w, until in zip(windows, untils, strict=False)
        }
        again = {held: self._together(held) for held in _held_again(windows)}
        tokens = [step.tokens for step in self.steps.values()]
        every = [step.everything for step in self.steps.values()]
        drawn = [step.drawn for step in self.steps.values()]
        also = [w for s in self.steps.values() for w in (s.judged, s.scraped)]
        count_gaps(
            recorded,
            [
                *(t.gaps for t in tokens),
                *every,
                *again.values(),
                *drawn,
            ],
            [*(t.arrived for t in tokens), *also],
        )
        alone = {((w.settled_ns, w.end_ns),): s.tokens.gaps for w, s in self.steps.items()}
        self._gaps: dict[Spans, Gaps] = alone | again

    def level(self, key: str, windows: Sequence[tuple[int, int]]) -> Figures:
        """One latency of these windows of a level together."""
        held = tuple(windows)
        if key != "itl":
            return sample_of(self.recorded.table, key, spans_of(self.recorded.table, held))
        if held not in self._gaps:  # not all of the level's steps are used
            self._gaps[held] = self._together(held)
            count_gaps(self.recorded, [self._gaps[held]])
        return self._gaps[held]

    def _together(self, held: Spans) -> Gaps:
        return Gaps(self.recorded.table, spans_of(self.recorded.table, held))


def overlapping(table: RecordTable, window: Window) -> RecordTable:
    """Requests that were under way in a window."""
    return table.select((table.done_ns >= window.settled_ns) & (table.sent_ns <= window.end_ns))


def _held_again(windows: Sequence[Window]) -> list[Spans]:
    """The windows of each level that was held more than once."""
    levels: dict[int, list[tuple[int, int]]] = {}
    for w in windows:
        levels.setdefault(w.users, []).append((w.settled_ns, w.end_ns))
    return [tuple(held) for held in levels.values() if len(held) > 1]
