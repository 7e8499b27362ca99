"""A study from its first request to its answer: everything that is heavy is imported here."""

from __future__ import annotations

import gc
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.json_output import write_json
from harness.cli.terminal import watch
from harness.report.answer import build_answer
from harness.report.report_data import ReportData
from harness.report.write import junit, write_reports
from harness.run.experiment import Experiment
from harness.run.preflight import message_stream
from harness.run.results import write_results
from harness.run.run_page import RunPage, about
from harness.search.confirm import confirming
from harness.search.held_levels import in_turn

if TYPE_CHECKING:
    from harness.drill.stage import Stage
    from harness.metrics.result import Result
    from harness.metrics.slo import Slo
    from harness.run.study_options import Wanted
    from harness.server.probe import Capabilities


def conduct(wanted: Wanted, url: str, known: Capabilities, stage: Stage | None = None) -> int:
    """Run to the end and say the answer; the exit code. `stage`: of a drill."""
    output, view = wanted.output, None
    confirm = confirming(wanted.confirm_ns) if wanted.confirm_ns else None
    choose = in_turn(wanted.holds) if wanted.holds else confirm
    with ExitStack() as stack:
        if output.ui_port is not None or output.metrics_port is not None:
            slos = wanted.plan.slos if wanted.holds else ()  # a search judges by the level
            view = stack.enter_context(RunPage(wanted.kind, slos))
            view.open_port(output)
            view.starting(url, **about(wanted, url, known.model))
        experiment = Experiment.begin(wanted, url, known, choose=choose, view=view, stage=stage)
        with watch(wanted, message_stream(output)) as terminal:
            experiment.conduct(terminal)
        del experiment  # what it remembers of tokens is in the folder too, and results need room
        gc.collect()
        result = conclude(output.out_dir, output.json_to, output.junit_to, view=view)
        if view is not None and not result.interrupted:
            view.linger()
    return result.exit_code


def conclude(
    folder: Path,
    json_to: str | None,
    junit_to: str | None = None,
    *,
    compat: tuple[str, ...] = (),
    view: RunPage | None = None,
    slos: tuple[Slo, ...] = (),
) -> Result:
    """Results, reports, words, `--json`, `--junit`. `view` is told of them too.

    By `slos` other than its own the folder is only read.
    """
    run, result, gaps = write_results(folder, compat, slos)
    stream = sys.stderr if json_to == "-" else sys.stdout
    made = build_answer(ReportData(run, result)) if slos else write_reports(run, result, gaps)
    words = made.text.rstrip()
    if view is not None:
        view.answer(result, words)
    stream.write(f"{words}\nThe run folder: {folder}\n")
    stream.flush()
    if json_to:
        write_json(json_to, result)
    if junit_to:
        Path(junit_to).write_text(junit(result))
    return result
