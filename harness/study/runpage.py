"""The live page of one run of the `vllm-harness` command (`--ui`), to its answer.

The web server ends with the command, a moment after an open page has seen the answer.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from harness.drive.livepage import LivePage
from harness.export.history import LiveState
from harness.export.states import facts_of
from harness.measure.recent import Recent
from harness.study.watch import PageView

if TYPE_CHECKING:
    from harness.measure.counts import RunCounts
    from harness.measure.result import Result
    from harness.study.experiment import Viewer, Wanted


class RunPage:
    """A context manager: at its end nobody is served any more."""

    def __init__(self, wanted: Wanted, url: str, model: str) -> None:
        """Nothing is served yet: the session does it."""
        self.recent = Recent()
        self.state = LiveState({"kind": wanted.kind})
        self.state.begin(**facts_of("starting", url), **about(wanted, url, model))
        self.page = LivePage(self.state, lambda: wanted.output.out_dir)
        self._looked_at = False

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let an open page see the answer, then end."""
        with suppress(KeyboardInterrupt):
            if self._looked_at:
                self.page.linger()
        self.page.close()

    def view(self, counts: RunCounts, beside: Viewer) -> PageView:
        """What sees each tick."""
        return PageView(self.state, counts, self.recent, beside)

    def over(self) -> None:
        """The load has ended."""
        self._looked_at = self.page.open
        self.page.stop = None
        self.state.tell(**facts_of("computing"))

    def answer(self, result: Result, words: str) -> None:
        """The results, and the report's words about them."""
        self.state.tell(**ending(result, words))


def about(wanted: Wanted, url: str, model: str) -> dict[str, Any]:
    """The page's facts of what is asked for."""
    return {
        "target": url,
        "model": model,
        "folder": wanted.output.out_dir.name,
        "slos": [{"name": s.name, "limit_ms": s.limit_ns / 1e6} for s in wanted.plan.slos],
        "processes": wanted.load.processes,
    }


def ending(result: Result, answer: str) -> dict[str, Any]:
    """The page's facts of a run that has its results; `answer`: the report's, in words."""
    lines = [line for line in answer.strip().splitlines() if not line.startswith("The run folder")]
    knee = result.knee
    return facts_of(result.status) | {
        "sentence": lines[0] if lines else "",
        "answer": lines[1:],
        "knee": [knee.estimate, *knee.ci95] if knee else [None, None, None],
    }
