"""A study from its first request to its answer: everything that is heavy is imported here."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from typing import TYPE_CHECKING

from harness.cli.conclude import code_after_upload, conclude
from harness.cli.terminal import watch
from harness.run.experiment import Experiment
from harness.run.preflight import message_stream
from harness.run.run_page import RunPage, about
from harness.search.cause_hold import searching
from harness.search.confirm import confirming
from harness.search.held_levels import in_turn

if TYPE_CHECKING:
    from harness.drill.stage import Stage
    from harness.run.study_options import Wanted
    from harness.server.probe import Capabilities


def conduct(wanted: Wanted, url: str, known: Capabilities, stage: Stage | None = None) -> int:
    """Run to the end and say the answer; the exit code. `stage`: of a drill."""
    output = wanted.output
    view = None
    choose = searching(has_metrics=known.metrics)
    if wanted.holds:
        choose = in_turn(wanted.holds)
    elif wanted.confirm_ns:
        choose = confirming(wanted.confirm_ns, choose)
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
        result = conclude(
            output.out_dir, output.json_to, output.junit_to, view=view, otlp=output.otlp
        )
        code = code_after_upload(output.out_dir, output.upload, result.exit_code)
        if view is not None and not result.interrupted:
            view.linger()
    return code
