"""Conducts one experiment: load, results, reports, the answer in words, `--json`.

How things look is not a study's business: the command line passes a `Front` in.
"""

from __future__ import annotations

import gc
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from harness.measure.typed import to_json
from harness.runfolder import names
from harness.runfolder.jsonfiles import to_json as dumps
from harness.study.preflight import said_to
from harness.study.results import write_results

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from harness.measure.result import Result
    from harness.runfolder.reader import Run
    from harness.server.probe import Capabilities
    from harness.study.choosing import Choice
    from harness.study.experiment import Experiment, Viewer, Wanted
    from harness.study.runpage import RunPage


class Front(Protocol):
    """What people see of a study."""

    def watch(self, wanted: Wanted, stream: TextIO) -> AbstractContextManager[Viewer]:
        """The live view, for as long as the load lasts."""

    def report(self, run: Run, result: Result) -> str:
        """Write the reports of a run folder; the answer in words."""

    def junit(self, result: Result) -> str:
        """`--junit`."""


def conduct(
    wanted: Wanted,
    url: str,
    known: Capabilities,
    front: Front,
    *,
    choose: Choice | None = None,
) -> int:
    """Run to the end and say the answer; the exit code."""
    from harness.study.experiment import Experiment  # noqa: PLC0415 - Locust: reports need none
    from harness.study.livemetrics import served  # noqa: PLC0415 - as above
    from harness.study.runpage import RunPage  # noqa: PLC0415 - as above

    folder = wanted.output.out_dir
    page = RunPage(wanted, url, known.model) if wanted.output.ui_port is not None else None
    recent = page.recent if page else None
    with served(wanted, url, known.model, recent) as metrics, page or nullcontext():
        experiment = Experiment.begin(wanted, url, known, choose=choose)
        experiment.metrics, experiment.page = metrics, page.page if page else None
        _load(experiment, front, page)
        del experiment  # what it remembers of tokens is in the folder too, and results need room
        gc.collect()
        result = conclude(folder, wanted.output.json_to, front, page=page)
        if wanted.output.junit_to:
            Path(wanted.output.junit_to).write_text(front.junit(result))
        if metrics is not None and not result.interrupted:
            metrics.result(result)
    return result.exit_code


def _load(experiment: Experiment, front: Front, page: RunPage | None) -> None:
    """Hold the levels."""
    wanted, metrics = experiment.wanted, experiment.metrics
    with front.watch(wanted, said_to(wanted.output)) as view:
        if page is not None and metrics is not None:
            view = page.view(metrics.counts, view)  # noqa: PLW2901 - the same, and the page's
        ended = experiment.hold(view)
        view.over(experiment)
    if page is not None:
        page.over()
    done = experiment.controller.result
    status = done.status if done else ""
    experiment.folder.write_json(names.ENDED, asdict(ended) | {"status": status})


def conclude(
    folder: Path,
    json_to: str | None,
    front: Front,
    compat: tuple[str, ...] = (),
    page: RunPage | None = None,
) -> Result:
    """Results, reports, words, `--json`. A page is told of them too."""
    run, result = write_results(folder, compat)
    stream = sys.stderr if json_to == "-" else sys.stdout
    words = front.report(run, result).rstrip()
    if page is not None:
        page.answer(result, words)
    stream.write(f"{words}\nThe run folder: {folder}\n")
    stream.flush()
    if json_to:
        write_json(json_to, result)
    return result


def write_json(where: str, result: Result) -> None:
    """Standard output for "-", else a file."""
    data = dumps(to_json(result), indent=True) + b"\n"
    if where == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        Path(where).write_bytes(data)
