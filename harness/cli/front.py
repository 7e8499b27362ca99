"""What people see of a study: a live view while it runs, reports and the answer at its end."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from harness.measure.figures import sample_of, spans_of
from harness.measure.fit import levels_of
from harness.measure.search import bracket_of
from harness.measure.summary import Tokens
from harness.report.live import Live, LiveView, seconds_left
from harness.report.say import Figure, say
from harness.report.write import write_reports
from harness.study.controller import decided
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.measure.figures import Figures
    from harness.measure.recorded import Recorded
    from harness.measure.result import Result
    from harness.runfolder.reader import Run
    from harness.study.controller import KneeController
    from harness.study.experiment import Experiment, Viewer, Wanted

RECENT_NS = 30 * SECOND  # the view's figures are of the step under way, this much at most,
LEAST_NS = 5 * SECOND  # less where so much has more events than
MOST_EVENTS = 100_000  # these: the view must not cost what the measurement does


class Front:
    """The terminal's."""

    @contextmanager
    def watch(self, wanted: Wanted, stream: TextIO) -> Iterator[Viewer]:
        """The live view on `stream`."""
        if not wanted.output.live:
            yield _Nothing()
            return
        with Live(stream) as live:
            yield _View(live, wanted)

    def report(self, run: Run, result: Result) -> str:
        """Write html, md and csv; the answer in words."""
        return write_reports(run, result).text


class _Nothing:
    def show(self, experiment: Experiment, now_ns: int, running_users: int) -> None:
        """`--quiet`."""


class _View:
    """Collects what the view shows, once a second."""

    def __init__(self, live: Live, wanted: Wanted) -> None:
        self.live = live
        self.view = LiveView(title=f"vllm-harness {wanted.kind}")
        self.budget_ns = wanted.plan.budget_ns if wanted.kind == "knee" else -1
        self._figures: dict[int, str] = {}  # step index -> its latencies, in words
        self._recent_ns = RECENT_NS

    def show(self, experiment: Experiment, now_ns: int, running_users: int) -> None:
        """Redraw from the controller, the ledger and the latest sample."""
        controller, view = experiment.controller, self.view
        known_ns = controller.horizon_ns
        step = controller.now
        view.running_users = running_users
        if self.budget_ns > 0:
            view.left_ns = seconds_left(controller.began_ns, now_ns, self.budget_ns)
        if step is not None:
            view.step, view.users = len(controller.steps) + 1, step.hold.users
            view.purpose = step.hold.purpose
            view.phase, settle = step.phase, step.settled_ns < 0
            start = now_ns - LEAST_NS if settle else max(step.settled_ns, now_ns - self._recent_ns)
            if self.live.due():
                look = experiment.ledger.look(start, known_ns)
                events = self._latest(look, start, known_ns)
                self._recent_ns = affordable_ns(now_ns - start, events)
            # of the step alone: what ends while it ramps or settles is not counted in its n
            since = step.began_ns if settle else step.settled_ns
            view.counts = counts(*experiment.ledger.ended(since, known_ns))
        self._past(controller)
        self._server(controller)
        self.live.show(view)

    def _latest(self, seen: Recorded, start: int, end: int) -> int:
        """The figures of a time; the events that were looked at."""
        view, span = self.view, (start, end)
        tokens = Tokens.of(seen, span)
        view.latencies["TTFT"] = p95(sample_of(seen.table, "ttft", spans_of(seen.table, [span])))
        view.latencies["ITL"] = p95(tokens.gaps)
        seconds = max(end - start, 1) / SECOND
        view.tokens_per_s = f"{say(tokens.arrived.tokens / seconds)} tokens/s"
        return tokens.arrived.events

    def _past(self, controller: KneeController) -> None:
        view, slos = self.view, controller.plan.slos
        for step in controller.steps[len(view.past) :]:
            told = step.invalid or step.judgement.reason
            decision = "invalid" if step.invalid else step.judgement.decision
            view.past.append((str(step.window.users), decision, told))
        used = decided(controller.steps)
        if slos and used:
            ends = bracket_of(levels_of(used, slos, controller.plan.max_errors))
            low = ends.low.users if ends.low else 0
            view.bracket = f"between {low} and {ends.high.users}" if ends.high else f"above {low}"

    def _server(self, controller: KneeController) -> None:
        sample = controller.server
        if sample is None or math.isnan(sample.running):
            self.view.server = "no metrics"
            return
        kv = "" if math.isnan(sample.kv_usage) else f", KV cache {sample.kv_usage:.0%}"
        self.view.server = f"{sample.running:.0f} running, {sample.waiting:.0f} waiting{kv}"


def affordable_ns(span_ns: int, events: int) -> int:
    """How far the next look goes back, after one of `span_ns` saw so many events."""
    return min(max(span_ns * MOST_EVENTS // max(events, 1), LEAST_NS), RECENT_NS)


def counts(ended: int, failed: int) -> str:
    """`1,200 ended`, `1,200 ended, 3 failed`."""
    return f"{ended:,} ended" + (f", {failed:,} failed" if failed else "")


def p95(seen: Figures) -> str:
    """`412 ms (398 to 432)` of a window."""
    interval = seen.interval(0.95)
    if interval is None:
        return ""
    hi = math.nan if interval.hi is None else interval.hi / MS
    return str(Figure(seen.quantile(0.95) / MS, interval.lo / MS, hi, "ms"))
