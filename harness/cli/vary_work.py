"""`vary`: check everything, measure with each setting, write what was found."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from harness.cli.inner_command import check_inner
from harness.cli.json_output import write_json
from harness.compare.compare_folders import compare_settings
from harness.errors import EXIT_INTERRUPTED
from harness.lifecycle import vary_settings as study
from harness.lifecycle.context_cost import context_costs
from harness.lifecycle.vllm_start import StartOptions, command_line
from harness.records.folder_writer import RunFolder
from harness.report.comparison_report import settings_report
from harness.run.options_from_args import default_folder, start_options
from harness.search.comparison import best_setting, exit_code

if TYPE_CHECKING:
    import argparse

    from harness.search.comparison import Setting


def execute(args: argparse.Namespace) -> int:
    """Check everything, measure, write the files. Raises ConfigError, RunFolderError."""
    variables = [study.parse_variable(text) for text in args.variables]
    settings = study.all_settings(variables)
    start = _start_of(args, settings)
    client_options = [setting.client for setting in settings]
    slos = check_inner(args.top, args.inner, client_options, started=start is not None)
    if start is not None:
        _check_commands(start, settings)
    out = args.out or default_folder("vary")
    folder = RunFolder.create(out)
    stream = sys.stderr if args.json == "-" else sys.stdout
    runs = study.in_order(settings, out, once=args.once)
    completed = study.measure(runs, args.inner, start, stream)
    pairs = compare_settings(settings, args.tolerance)
    code = exit_code(settings) if completed else EXIT_INTERRUPTED
    costs = context_costs(settings)
    text, page = settings_report(settings, pairs, slos, code, costs)
    headline, _, _ = text.partition("\n")
    result = {
        "exit_code": code,
        "headline": headline,
        "best": best_setting(settings, pairs)[0],
        "command": args.inner,
        "slos": slos,
        "settings": settings,
        "comparisons": pairs,
        "context_costs": costs,
    }
    folder.write_json("vary.json", result)
    folder.write("vary.md", text)
    folder.write("vary.html", page)
    stream.write(f"\n{text}Everything is in {out}\n")
    if args.json:
        write_json(args.json, result)
    return code


def _start_of(args: argparse.Namespace, settings: list[Setting]) -> StartOptions | None:
    """How vLLM is started; None: the runs are of one server that is not started here."""
    start = start_options(args)
    starts = start != StartOptions() or any(setting.server for setting in settings)
    return start if starts else None


def _check_commands(start: StartOptions, settings: list[Setting]) -> None:
    """Raises ConfigError for a setting with which vLLM could not be started."""
    for setting in settings:
        command_line(start, setting.server, 0)
