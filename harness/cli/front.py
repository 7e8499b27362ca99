"""What people see of a study: a live view while it runs, reports and the answer at its end."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from harness.measure.figures import sample_of, spans_of
from harness.measure.states import Decision, Purpose
from harness.measure.summary import Tokens
from harness.report.junit import junit
from harness.report.live import PURPOSES, SO_FAR, Live, LiveView, Row
from harness.report.say import Figure, count, say
from harness.report.write import write_reports
from harness.study.outcome import bracket_users
from harness.study.watch import levels_ended, p95_ms
from harness.units import MS, SECOND, say_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.measure.recorded import Recorded
    from harness.measure.result import Result
    from harness.runfolder.reader import Run
    from harness.study.controller import KneeController, Now, Step
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

    def junit(self, result: Result) -> str:
        """A test case per SLO."""
        return junit(result)


class _Nothing:
    def show(self, experiment: Experiment, now_ns: int, running_users: int) -> None:
        """`--quiet`."""

    def over(self, experiment: Experiment) -> None:
        """`--quiet`."""


class _View:
    """Collects what the view shows, once a second."""

    def __init__(self, live: Live, wanted: Wanted) -> None:
        self.live = live
        self.wanted = wanted
        self.view = LiveView(title=f"vllm-harness {wanted.kind}")
        self._recent_ns = RECENT_NS

    def show(self, experiment: Experiment, now_ns: int, running_users: int) -> None:
        """Redraw from the controller, the ledger and the latest sample."""
        controller, view = experiment.controller, self.view
        known_ns, now = controller.horizon_ns, controller.now
        ended = 0
        view.latencies, view.tokens_per_s, view.counts = {}, "", ""
        if now is not None:
            view.level, view.users = len(controller.steps) + 1, now.hold.users
            view.purpose = PURPOSES.get(now.hold.purpose, "")
            view.phase = phase(now.phase, running_users, now.hold.users)
            if now.phase == "measuring" and known_ns - now.settled_ns >= SECOND:
                ended, failed = experiment.ledger.ended(now.settled_ns, known_ns)
                view.counts = counts(ended, failed)
                start = max(now.settled_ns, known_ns - self._recent_ns)
                if self.live.due():
                    events = self._latest(experiment.ledger.look(start, known_ns), start, known_ns)
                    self._recent_ns = affordable_ns(known_ns - start, events)
            self._progress(controller, now, now_ns - controller.began_ns, ended)
        self._past(experiment)
        self._server(controller)
        self.live.show(view)

    def over(self, experiment: Experiment) -> None:
        """The row of a level that was cut short, too."""
        self._past(experiment)
        self.live.over(self.view)

    def _progress(self, controller: KneeController, now: Now, elapsed_ns: int, ended: int) -> None:
        """What is left: of the budget, or of the levels that were given."""
        each, settled_ns, levels = now.hold.cap_ns, now.settled_ns, self.wanted.levels
        by_time = now.hold.until == "time"
        part = max(controller.horizon_ns - settled_ns, 0) * (settled_ns >= 0) if by_time else ended
        done, of = len(controller.steps) * each + min(part, each), levels * each
        if not levels:
            done, of = elapsed_ns, self.wanted.plan.budget_ns
        left = f"at {'least' if levels else 'most'} {whole(of - done)} left"
        if levels and not by_time:
            left = f"{done:,} of {count(of, 'request')}"
        self.view.done, self.view.time = done / of, f"{whole(elapsed_ns)} elapsed, {left}"

    def _latest(self, seen: Recorded, start: int, end: int) -> int:
        """The figures of a time; the events that were looked at."""
        view, span = self.view, (start, end)
        tokens = Tokens.of(seen, span)
        ttft = sample_of(seen.table, "ttft", spans_of(seen.table, [span]))
        for name, figures in (("TTFT", ttft), ("ITL", tokens.gaps)):
            view.latencies[name] = str(Figure(*p95_ms(figures), "ms")) if figures.n else ""
        seconds = max(end - start, 1) / SECOND
        view.tokens_per_s = f"{say(tokens.arrived.tokens / seconds)} tokens/s"
        return tokens.arrived.events

    def _past(self, experiment: Experiment) -> None:
        view, controller = self.view, experiment.controller
        slos = controller.plan.slos
        limits = {slo.metric: slo.limit_ns / MS for slo in slos if slo.name.endswith("_p95")}
        for step, seen in zip(controller.steps, levels_ended(experiment), strict=True):
            if step.window.index < len(view.past):
                continue
            ttft, itl = (
                Figure(*p95, "ms", limits.get(key, math.nan))
                for key, p95 in (("ttft", seen.ttft_p95_ms), ("itl", seen.itl_p95_ms))
            )
            rate, ended = Figure(seen.output_tokens_per_s), counts(seen.ended, seen.failed)
            reason = step.invalid or step.judgement.reason
            told = ended.replace(" ended", "")
            view.past.append(Row(step.window.users, ttft, itl, rate, told, result(step), reason))
        low, high = bracket_users(controller.plan, controller.steps)
        ends = f"between {low or 0} and {high}" if high else f"above {low}" if low else ""
        view.bracket = ends and f"{ends} so far"

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


def phase(name: str, running_users: int, users: int) -> str:
    """As people say it, with the users that are there while others still start."""
    if name not in ("ramping", "settling"):
        return name
    started = f", {running_users:,} of them started" if running_users < users else ""
    return f"warming up{started}"


def result(step: Step) -> str:
    """Its decision; on the way up a level need not be decided, only lean to pass."""
    if step.invalid:
        return Decision.invalid
    judged, up = step.judgement, step.window.purpose == Purpose.up
    so_far = up and judged.decision == Decision.inconclusive and not judged.leans_to_fail
    return SO_FAR if so_far else judged.decision


def whole(ns: int) -> str:
    """A duration in whole seconds, never below zero."""
    return say_ns(max(ns, 0) // SECOND * SECOND) if ns >= SECOND else "0 s"
