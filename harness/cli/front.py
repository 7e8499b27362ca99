"""What people see of a study: the live view while it runs, the reports and the answer at its end."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from harness.report.answer import answer
from harness.report.facts import gather
from harness.runfolder.reader import read_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.study.experiment import Experiment, Wanted


class Front:
    """The terminal's."""

    @contextmanager
    def watch(self, wanted: Wanted, stream: TextIO) -> Iterator[Lines]:
        """Lines."""
        yield Lines(stream)

    def report(self, folder: Path) -> str:
        """Write html, md and csv; the answer in words."""
        return answer(gather(read_run(folder))).text


class Lines:
    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.n = 0

    def show(self, e: Experiment, now_ns: int, running: int) -> None:
        c = e.controller
        while self.n < len(c.steps):
            s = c.steps[self.n]
            w = s.window
            self.n += 1
            print(w.users, w.purpose, f'{(w.start_ns-w.chosen_ns)/1e9:.1f}+{(w.settled_ns-w.start_ns)/1e9:.1f}+{(w.end_ns-w.settled_ns)/1e9:.1f}s life {s.evidence.lifetime_ns/1e9:.2f}', s.judgement.decision, s.judgement.reason, s.invalid, file=self.stream, flush=True)
