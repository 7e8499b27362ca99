"""A run's live metrics for Prometheus: what the controller and the records show, once a second."""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from math import nan
from typing import TYPE_CHECKING, Final

from harness.drive.metricsport import MetricsPort
from harness.export.live import LiveRun
from harness.measure.states import Status
from harness.server.address import Address
from harness.study.outcome import bracket_users

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.measure.counts import RunCounts
    from harness.measure.recent import Recent
    from harness.measure.result import Result
    from harness.measure.samples import ClientSample
    from harness.study.controller import KneeController, Target
    from harness.study.experiment import Wanted

LINGER_S: Final = 30.0  # twice Prometheus' usual interval


class RunMetrics:
    """Keeps the page up to date."""

    def __init__(self, live: LiveRun, port: MetricsPort | None = None) -> None:
        """`port` is open; None: somebody asks `live` itself."""
        self._live = live
        self._port = port
        self._steps = -1

    @property
    def counts(self) -> RunCounts:
        """The sink of the run's records."""
        return self._live.counts

    def tick(self, controller: KneeController, target: Target, running: int) -> None:
        """Once a second."""
        live, now = self._live, controller.now
        live.users(target.users, running)
        phase, purpose = (now.phase, now.hold.purpose) if now is not None else ("", "")
        live.step(len(controller.steps) + (now is not None), phase, purpose)
        if len(controller.steps) != self._steps:
            self._past(controller)
        self.show()

    def _past(self, controller: KneeController) -> None:
        steps = controller.steps
        self._steps = len(steps)
        low, high = (nan if x is None else x for x in bracket_users(controller.plan, steps))
        told = ("invalid" if step.invalid else step.judgement.decision for step in steps)
        self._live.past(told, low, high)

    def clients(self, samples: Sequence[ClientSample]) -> None:
        """What the load generator says of itself."""
        self._live.clients(samples)

    def over(self, controller: KneeController) -> None:
        """The load has ended and every record is here."""
        self._live.users(0, 0)
        self._live.step(len(controller.steps), "", "")
        self._past(controller)
        self.show()

    def result(self, result: Result | None) -> None:
        """What was found; then wait for the scrape that sees it."""
        if result is not None and result.knee is not None and result.status == Status.found:
            self._live.found(result.knee)
        self.show()
        if self._port is not None:
            with suppress(KeyboardInterrupt):  # everything is written: only the wait ends
                self._port.linger(LINGER_S)

    def show(self) -> None:
        """From now on a scrape sees what is known now."""
        if self._port is not None:
            self._port.body = self._live.page()


@contextmanager
def served(
    wanted: Wanted, url: str, model: str, recent: Recent | None = None
) -> Iterator[RunMetrics | None]:
    """None without --metrics-port and without a page that looks at `recent`. Raises ConfigError."""
    output = wanted.output
    live = LiveRun(wanted.kind, wanted.load.workload.name, wanted.plan.slos, recent)
    live.known(output.out_dir.name, model, Address.parse(url).authority)
    if output.metrics_port is None:
        yield RunMetrics(live) if recent is not None else None
        return
    port = MetricsPort(output.metrics_host, output.metrics_port)
    port.start()
    try:
        sys.stderr.write(f"Metrics at http://{port.host}:{port.port}/metrics\n")
        metrics = RunMetrics(live, port)
        metrics.show()
        yield metrics
    finally:
        port.close()
