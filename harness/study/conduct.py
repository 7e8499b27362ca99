"""Conducts one experiment: load, results, reports, the answer in words, `--json`.

How things look is not a study's business: the command line passes a `Front` in.
"""

from __future__ import annotations

import gc
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from harness.measure.typed_json import to_json
from harness.runfolder.json_files import to_json as dumps
from harness.study.preflight import message_stream
from harness.study.results import KNEE, write_results

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from harness.measure.records.token_gaps import WindowGaps
    from harness.measure.result import Result
    from harness.runfolder.folder_reader import Run
    from harness.server.probe import Capabilities
    from harness.study.experiment import Viewer, Wanted
    from harness.study.level_state import ChooseNext
    from harness.study.run_page import RunPage


class Front(Protocol):
    """What people see of a study."""

    def watch(self, wanted: Wanted, stream: TextIO) -> AbstractContextManager[Viewer]:
        """The live view, for as long as the load lasts."""

    def report(self, run: Run, result: Result, gaps: WindowGaps) -> str:
        """Write the reports of a run folder; the answer in words."""

    def junit(self, result: Result) -> str:
        """`--junit`."""


def conduct(
    wanted: Wanted,
    url: str,
    known: Capabilities,
    front: Front,
    *,
    choose: ChooseNext | None = None,
) -> int:
    """Run to the end and say the answer; the exit code."""
    from harness.study.experiment import Experiment  # noqa: PLC0415 - Locust: reports need none
    from harness.study.run_page import RunPage, about  # noqa: PLC0415 - as above

    output, view = wanted.output, None
    with ExitStack() as stack:
        if output.ui_port is not None or output.metrics_port is not None:
            slos = wanted.plan.slos if wanted.kind != KNEE else ()  # a search judges by the level
            view = stack.enter_context(RunPage(wanted.kind, slos))
            view.open_port(output)
            view.starting(url, **about(wanted, url, known.model))
        experiment = Experiment.begin(wanted, url, known, choose=choose, view=view)
        with front.watch(wanted, message_stream(output)) as terminal:
            experiment.conduct(terminal)
        del experiment  # what it remembers of tokens is in the folder too, and results need room
        gc.collect()
        result = conclude(output.out_dir, output.json_to, front, view=view)
        if output.junit_to:
            Path(output.junit_to).write_text(front.junit(result))
        if view is not None and not result.interrupted:
            view.linger()
    return result.exit_code


def conclude(
    folder: Path,
    json_to: str | None,
    front: Front,
    compat: tuple[str, ...] = (),
    view: RunPage | None = None,
) -> Result:
    """Results, reports, words, `--json`. `view` is told of them too."""
    run, result, gaps = write_results(folder, compat)
    stream = sys.stderr if json_to == "-" else sys.stdout
    words = front.report(run, result, gaps).rstrip()
    if view is not None:
        view.answer(result, words)
    stream.write(f"{words}\nThe run folder: {folder}\n")
    stream.flush()
    if json_to:
        write_json(json_to, result)
    return result


def write_json(where: str, result: Any) -> None:
    """Standard output for "-", else a file."""
    data = dumps(to_json(result), indent=True) + b"\n"
    if where == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        Path(where).write_bytes(data)
