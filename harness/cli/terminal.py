"""The terminal while a study runs: a live view."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from harness.measure.metrics import HEADLINES
from harness.measure.states import Decision, Purpose, StopRule
from harness.measure.window_summary import WindowTokens
from harness.report.numbers import Quantity, count_of, format_number
from harness.report.terminal_view import (
    PASSING_SO_FAR,
    PURPOSES,
    LevelRow,
    LiveTerminal,
    TerminalPanel,
)
from harness.study.knee_estimate import bracket_users
from harness.study.page_viewer import ended_levels, headline_latencies
from harness.units import MS, SECOND, say_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.measure.records.record_source import RecordSource
    from harness.study.controller import KneeController
    from harness.study.experiment import Experiment, Viewer
    from harness.study.level_state import CurrentLevel, HeldLevel
    from harness.study.study_options import Wanted

# The figures of the view cover the latest part of the current level, at most MAX_RECENT_NS. They
# cover less, down to MIN_RECENT_NS, if that time has more than MAX_EVENTS events: the view must not
# cost as much CPU as the measurement.
MAX_RECENT_NS = 30 * SECOND
MIN_RECENT_NS = 5 * SECOND
MAX_EVENTS = 100_000


@contextmanager
def watch(wanted: Wanted, stream: TextIO) -> Iterator[Viewer | None]:
    """The live view, for as long as the load lasts; none with `--quiet`."""
    if not wanted.output.live:
        yield None
        return
    with LiveTerminal(stream) as live:
        yield _TerminalView(live, wanted)


class _TerminalView:
    """Collects what the view shows, once a second."""

    def __init__(self, live: LiveTerminal, wanted: Wanted) -> None:
        self.live = live
        self.wanted = wanted
        self.view = TerminalPanel(title=f"vllm-harness {wanted.kind}")
        self._recent_ns = MAX_RECENT_NS

    def show(self, experiment: Experiment, now_ns: int, running_users: int) -> None:
        controller, view = experiment.controller, self.view
        known_ns, now = controller.horizon_ns, controller.now
        ended = 0
        view.latencies, view.tokens_per_s, view.counts = {}, "", ""
        if now is not None:
            plan, users = controller.plan, now.hold.users
            view.level, view.users = len(controller.levels) + 1, users
            if plan.rate_step_per_s:
                view.rate = f"{plan.load_of(users):,} requests/s, {running_users:,} in flight"
            view.purpose = PURPOSES.get(now.hold.purpose, "")
            view.phase = phase_text(now.phase, running_users, 0 if plan.rate_step_per_s else users)
            if now.phase == "measuring" and known_ns - now.settled_ns >= SECOND:
                ended, failed = experiment.ledger.ended(now.settled_ns, known_ns)
                view.counts = request_counts(ended, failed)
                start = max(now.settled_ns, known_ns - self._recent_ns)
                if self.live.due():
                    events = self._latest(experiment.ledger.look(start, known_ns), start, known_ns)
                    self._recent_ns = affordable_ns(known_ns - start, events)
            self._progress(controller, now, now_ns - controller.began_ns, ended)
        self._past(experiment)
        self._server(experiment)
        self.live.show(view)

    def over(self, experiment: Experiment) -> None:
        """Show the final rows, including a level that was cut short."""
        self._past(experiment)
        self.live.over(self.view)

    def _progress(
        self, controller: KneeController, now: CurrentLevel, elapsed_ns: int, ended: int
    ) -> None:
        """The share done and the time left, of the budget or of the given levels."""
        by_time = now.hold.stop == StopRule.time
        each = now.hold.max_ns if by_time else now.hold.max_requests
        settled_ns, levels = now.settled_ns, len(self.wanted.holds)
        part = max(controller.horizon_ns - settled_ns, 0) * (settled_ns >= 0) if by_time else ended
        done, of = len(controller.levels) * each + min(part, each), levels * each
        if not levels:
            done, of = elapsed_ns, self.wanted.plan.budget_ns
        left = f"at {'least' if levels else 'most'} {whole_seconds(of - done)} left"
        if levels and not by_time:
            left = f"{done:,} of {count_of(of, 'request')}"
        self.view.done, self.view.time = done / of, f"{whole_seconds(elapsed_ns)} elapsed, {left}"

    def _latest(self, seen: RecordSource, start: int, end: int) -> int:
        """Show the figures of a time span; returns the number of events in it."""
        view, span = self.view, (start, end)
        tokens = WindowTokens.of(seen, span)
        for key, p95 in headline_latencies(seen, span, tokens).items():
            figure = Quantity(*p95, "ms")
            view.latencies[HEADLINES[key]] = str(figure) if figure.known else ""
        seconds = max(end - start, 1) / SECOND
        view.tokens_per_s = f"{format_number(tokens.arrived.tokens / seconds)} tokens/s"
        return tokens.arrived.events

    def _past(self, experiment: Experiment) -> None:
        view, controller = self.view, experiment.controller
        slos = controller.plan.slos
        limits = {slo.metric: slo.limit_ns / MS for slo in slos if slo.statistic == "p95"}
        for level, seen in zip(controller.levels, ended_levels(experiment), strict=True):
            if level.window.index < len(view.past):
                continue
            ttft, itl = (
                Quantity(*p95, "ms", limits.get(key, math.nan)) for key, p95 in seen.p95_ms.items()
            )
            rate, reason = (
                Quantity(seen.output_tokens_per_s),
                level.invalid or level.judgement.reason,
            )
            requests = request_counts(seen.ended, seen.failed).replace(" ended", "")
            view.past.append(
                LevelRow(
                    controller.plan.load_of(level.window.users),
                    ttft,
                    itl,
                    rate,
                    requests,
                    result_text(level),
                    reason,
                )
            )
        # The bracket so far, as `between 16 and 32 so far`.
        low, high = bracket_users(controller.plan, controller.levels)
        ends = f"between {low or 0} and {high}" if high else f"above {low}" if low else ""
        view.bracket = ends and f"{ends} so far"

    def _server(self, experiment: Experiment) -> None:
        sample, session = experiment.controller.server, experiment.session
        unread = session.scraper.unread if session is not None else []
        if sample is None or math.isnan(sample.running):
            self.view.server = "no metrics"
            return
        if unread:
            self.view.server = f"no metrics from {', '.join(unread)}"
            return
        kv = "" if math.isnan(sample.kv_usage) else f", KV cache {sample.kv_usage:.0%}"
        self.view.server = f"{sample.running:.0f} running, {sample.waiting:.0f} waiting{kv}"


def affordable_ns(span_ns: int, events: int) -> int:
    """The span of the next update, after one of `span_ns` had so many events."""
    return min(max(span_ns * MAX_EVENTS // max(events, 1), MIN_RECENT_NS), MAX_RECENT_NS)


def request_counts(ended: int, failed: int) -> str:
    """`1,200 ended`, `1,200 ended, 3 failed`."""
    return f"{ended:,} ended" + (f", {failed:,} failed" if failed else "")


def phase_text(name: str, running_users: int, users: int) -> str:
    """The phase in words, with the number of users that have started."""
    if name not in ("ramping", "settling"):
        return name
    started = f", {running_users:,} of them started" if running_users < users else ""
    return f"warming up{started}"


def result_text(level: HeldLevel) -> str:
    """The decision; on the way up an undecided level that leans to pass is passing so far."""
    if level.invalid:
        return Decision.invalid
    judged, up = level.judgement, level.window.purpose == Purpose.up
    # On the way up the search moves on without a decision, so the row must not say "inconclusive".
    so_far = up and judged.decision == Decision.inconclusive and not judged.leans_to_fail
    return PASSING_SO_FAR if so_far else judged.decision


def whole_seconds(ns: int) -> str:
    """A duration in whole seconds, never below zero."""
    return say_ns(max(ns, 0) // SECOND * SECOND) if ns >= SECOND else "0 s"
