"""Conducts one experiment: load, results, reports, the answer in words, `--json`.

How things look is not a study's business: the command line passes a `Front` in.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from harness.errors import EXIT_INTERRUPTED
from harness.runfolder import names
from harness.runfolder.jsonfiles import plain, to_json
from harness.study.experiment import Experiment, Viewer, Wanted
from harness.study.results import write_results

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from harness.server.probe import Capabilities
    from harness.study.controller import Choice
    from harness.study.options import OutputOptions


class Front(Protocol):
    """What people see of a study."""

    def watch(self, wanted: Wanted, stream: TextIO) -> AbstractContextManager[Viewer]:
        """The live view, for as long as the load lasts."""

    def report(self, folder: Path) -> str:
        """Write the reports of a folder that has its results; the answer in words."""


def conduct(
    wanted: Wanted,
    url: str,
    known: Capabilities,
    front: Front,
    *,
    choose: Choice | None = None,
    plan_users: int | None = None,
) -> int:
    """Run to the end and say the answer; the exit code."""
    experiment = Experiment.begin(wanted, url, known, choose, plan_users)
    with front.watch(wanted, said_to(wanted.output)) as view:
        ended = experiment.hold(view)
    done = experiment.controller.result
    status = done.status if done else ""
    experiment.folder.write_json(names.ENDED, asdict(ended) | {"status": status})
    code = conclude(wanted.output.out_dir, wanted.output.json_to, front)
    return EXIT_INTERRUPTED if ended.interrupted else code


def said_to(output: OutputOptions) -> TextIO:
    """Words go to stdout, unless `--json -` wants it for itself."""
    return sys.stderr if output.json_to == "-" else sys.stdout


def conclude(folder: Path, json_to: str | None, front: Front) -> int:
    """Results, reports, words, `--json`; the exit code."""
    summary, result, code = write_results(folder)
    stream = sys.stderr if json_to == "-" else sys.stdout
    stream.write(f"{front.report(folder).rstrip()}\nThe run folder: {folder}\n")
    stream.flush()
    if json_to:
        write_json(json_to, summary if result["status"] == "held" else result)
    return code


def write_json(where: str, value: dict[str, Any]) -> None:
    """Standard output for "-", else a file."""
    data = to_json(plain(value), indent=True) + b"\n"
    if where == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        Path(where).write_bytes(data)
