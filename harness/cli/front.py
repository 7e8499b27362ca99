"""What people see of a study: a live view while it runs, reports and the answer at its end."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

import numpy as np

from harness.measure.fit import levels_of
from harness.measure.metrics import METRICS
from harness.measure.search import bracket_of
from harness.measure.stats import block_of, quantile, quantile_interval
from harness.measure.summary import block_ns_of, in_window
from harness.report.live import Live, LiveView, seconds_left
from harness.report.say import say
from harness.report.write import write_reports
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.measure.table import RecordTable
    from harness.study.controller import KneeController
    from harness.study.experiment import Experiment, Viewer, Wanted

RECENT_NS = 30 * SECOND  # the view's figures are of the step under way, this much at most


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

    def report(self, folder: Path) -> str:
        """Write html, md and csv; the answer in words."""
        return write_reports(folder).text


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

    def show(self, experiment: Experiment, now_ns: int, running_users: int) -> None:
        """Redraw from the controller, the ledger and the latest sample."""
        controller, view = experiment.controller, self.view
        step = controller.now
        view.running_users = running_users
        if self.budget_ns > 0:
            view.left_ns = seconds_left(controller.began_ns, now_ns, self.budget_ns)
        if step is not None:
            view.step, view.users = len(controller.steps) + 1, step.hold.users
            view.purpose = step.hold.purpose
            ramp, settle = step.ramped_ns < 0, step.settled_ns < 0
            view.phase = "ramping" if ramp else "settling" if settle else "measuring"
            start = max(step.settled_ns, now_ns - RECENT_NS) if not settle else now_ns - 5 * SECOND
            table = experiment.ledger.look(start, now_ns - controller.lag_ns)
            self._latest(table, start, now_ns - controller.lag_ns)
            # of the step alone: what ends while it ramps or settles is not counted in its n
            since = step.began_ns if settle else step.settled_ns
            view.counts = counts(*experiment.ledger.ended(since, now_ns - controller.lag_ns))
        self._past(controller)
        self._server(controller)
        self.live.show(view)

    def _latest(self, table: RecordTable, start: int, end: int) -> None:
        view = self.view
        for key, name in (("ttft", "TTFT"), ("itl", "ITL")):
            view.latencies[name] = p95(table, key, start, end)
        arrived = int(table.tokens[(table.at_ns >= start) & (table.at_ns <= end)].sum())
        seconds = max(end - start, 1) / SECOND
        view.tokens_per_s = f"{say(arrived / seconds)} tokens/s"

    def _past(self, controller: KneeController) -> None:
        view, slos = self.view, controller.plan.slos
        for step in controller.steps[len(view.past) :]:
            told = step.invalid or step.judgement.reason
            decision = "invalid" if step.invalid else step.judgement.decision
            view.past.append((str(step.window.users), decision, told))
        if slos and controller.steps:
            used = [s.evidence for s in controller.steps if not s.invalid]
            ends = bracket_of(levels_of(used, slos))
            low = ends.low.users if ends.low else 0
            view.bracket = f"between {low} and {ends.high.users}" if ends.high else f"above {low}"

    def _server(self, controller: KneeController) -> None:
        sample = controller.server
        if sample is None or math.isnan(sample.running):
            self.view.server = "no metrics"
            return
        kv = "" if math.isnan(sample.kv_usage) else f", KV cache {sample.kv_usage:.0%}"
        self.view.server = f"{sample.running:.0f} running, {sample.waiting:.0f} waiting{kv}"


def counts(ended: int, failed: int) -> str:
    """`1,200 ended`, `1,200 ended, 3 failed`."""
    return f"{ended:,} ended" + (f", {failed:,} failed" if failed else "")


def p95(table: RecordTable, key: str, start: int, end: int) -> str:
    """`412 ms (398 to 432)` of a window, as far as it is known."""
    observe = METRICS[key].observe
    if observe is None or not len(table):
        return ""
    seen = in_window(observe(table), table, key, start, end)
    if not len(seen.ns):
        return ""
    value = quantile(np.sort(seen.ns), 0.95) / MS
    blocks = block_of(seen.at_ns, start, block_ns_of(table, start, end))
    interval = quantile_interval(seen.ns, blocks, 0.95)
    if interval is None:
        return f"{say(value)} ms"
    lo, hi = interval.lo / MS, interval.hi / MS
    return f"{say(value, lo, hi)} ms ({say(lo, lo, hi)} to {say(hi, lo, hi)})"
