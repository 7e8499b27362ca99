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


def execute(args: argparse.Namespace) -> int:
    """Check everything, measure, write the files. Raises ConfigError, RunFolderError."""
    settings = study.all_settings([study.parse_variable(text) for text in args.variables])
    given = start_options(args)
    start = given if given != StartOptions() or any(one.server for one in settings) else None
    more = [one.client for one in settings]
    slos = check_inner(args.top, args.inner, more, started=start is not None)
    for one in settings:
        if start is not None:
            command_line(start, one.server, 0)
    out = args.out or default_folder("vary")
    folder = RunFolder.create(out)
    stream = sys.stderr if args.json == "-" else sys.stdout
    whole = study.measure(study.in_order(settings, out, once=args.once), args.inner, start, stream)
    pairs = compare_settings(settings, args.tolerance)
    code = exit_code(settings) if whole else EXIT_INTERRUPTED
    costs = context_costs(settings)
    text, page = settings_report(settings, pairs, slos, code, costs)
    result = {
        "exit_code": code,
        "headline": text.partition("\n")[0],
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
    stream.write(f"\n{text}All of it: {out}\n")
    if args.json:
        write_json(args.json, result)
    return code
