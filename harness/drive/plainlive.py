"""The live page of a test that no study conducts: users as Locust's own form asks for them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import gevent

from harness.drive.livepage import LivePage
from harness.export.history import LiveState
from harness.export.states import facts_of
from harness.measure.records import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from harness.drive.plugin import Plugin

SECOND_S: Final = 1.0
UNDER_WAY: Final = ("running", "stopping")
START: Final = "Start the test on Locust's own page."
UNKEPT: Final = (
    " No run folder is written: to keep the records, start Locust with --run-folder DIR."
)


class PlainLive:
    """Looks once a second while a test runs."""

    def __init__(self, plugin: Plugin) -> None:
        """Serve the page."""
        self.plugin = plugin
        self.state = LiveState(
            {
                "kind": "locust",
                "slos": [
                    {"name": slo.name, "limit_ms": slo.limit_ns / 1e6} for slo in plugin.slos.slos
                ],
            }
        )
        self._idle = START + ("" if self._folder() else UNKEPT)
        self.state.begin(**facts_of("idle", self._idle))
        self.page = LivePage(self.state, self._folder)
        self.page.install(plugin.environment)
        events = plugin.environment.events
        events.test_start.add_listener(self._on_start)
        events.test_stopping.add_listener(self._on_stopping)
        events.test_stop.add_listener(self._on_stop)
        self._loop: gevent.Greenlet | None = None

    def _folder(self) -> Path | None:
        folder = self.plugin.files.folder
        return folder.path if folder is not None else None

    def _on_start(self, **_: Any) -> None:
        host = str(self.plugin.environment.host or "")
        self.state.begin(**facts_of("running", host), target=host)
        self.page.stop = self._stop
        if self._loop is not None:  # of the test before: it may not have seen the end yet
            self._loop.kill()
        self.plugin.recent.clear()
        self._loop = gevent.spawn(self._run, *self._counted())

    def _stop(self) -> None:
        runner = self.plugin.environment.runner
        if runner is not None:
            gevent.spawn(runner.stop)

    def refuse(self, sentence: str) -> None:
        """Nothing could be sent."""
        self.page.stop = None
        self.state.tell(**facts_of("refused", sentence))

    def _on_stopping(self, **_: Any) -> None:
        if self.state.facts["state"] == "running":
            self.state.tell(**facts_of("stopping"))

    def _on_stop(self, **_: Any) -> None:
        self.page.stop = None
        if self.state.facts["state"] in UNDER_WAY:
            self.state.tell(**facts_of("ended", self._idle))

    def _counted(self) -> tuple[int, int]:
        """(requests that ended, of these failed) since the process began."""
        outcomes = self.plugin.live.counts.outcomes
        ended = sum(outcomes.values())
        return ended, ended - outcomes[Outcome.ok]

    def _run(self, ended: int, failed: int) -> None:
        """`ended` and `failed` were before this test."""
        plugin, runner = self.plugin, self.plugin.environment.runner
        began, before_s = time.monotonic(), time.monotonic()
        tokens = plugin.live.counts.output_tokens
        while runner is not None and self.state.facts["state"] in UNDER_WAY:
            gevent.sleep(SECOND_S)
            now_s, counts = time.monotonic(), plugin.live.counts
            rate = (counts.output_tokens - tokens) / (now_s - before_s)
            before_s, tokens = now_s, counts.output_tokens
            users = int(runner.user_count)
            point = [round(now_s - began, 1), users, round(rate, 1), None, None]
            now = self._counted()
            self.state.add(
                [*point, *plugin.recent.look()], ended=now[0] - ended, failed=now[1] - failed
            )
