"""`vary`: check everything, measure with each setting, write what was found."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from harness.cli.inner_command import check_inner
from harness.cli.json_output import write_json
from harness.compare.compare_deployments import compare_deployments
from harness.compare.compare_folders import compare_settings
from harness.errors import EXIT_INTERRUPTED, ConfigError
from harness.lifecycle import vary_settings as study
from harness.lifecycle.context_cost import context_costs
from harness.lifecycle.deployments import launches, read_deployments
from harness.lifecycle.vary_servers import VariedServers
from harness.lifecycle.vllm_start import StartOptions, command_line
from harness.records.folder_writer import RunFolder
from harness.report.comparison_report import settings_report
from harness.report.deployments_report import deployment_findings
from harness.run.options_from_args import default_folder, start_options
from harness.search.comparison import compared_best, exit_code

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from pathlib import Path

    from harness.lifecycle.deployments import Deployment
    from harness.search.comparison import Best, Comparison, Setting


def execute(args: argparse.Namespace) -> int:
    """Check everything, measure, write the files. Raises ConfigError, RunFolderError."""
    start = start_options(args)
    deployments = read_deployments(args.deployments, start) if args.deployments else {}
    settings = _settings_of(args, deployments)
    starts = start != StartOptions() or any(x.server or x.deployment for x in settings)
    client_options = [setting.client for setting in settings]
    slos = check_inner(args.top, args.inner, client_options, started=starts)
    out = args.out or default_folder("vary")
    if starts:
        _check_commands(start, settings, deployments, out)
    folder = RunFolder.create(out)
    stream = sys.stderr if args.json == "-" else sys.stdout
    runs = study.in_order(settings, out, once=args.once, keep=args.keep)
    servers = VariedServers(start, stream, deployments) if starts else None
    keep_in = out if args.keep else None
    completed = study.measure(runs, args.inner, servers, stream, keep_in)
    pairs, bests = _compared(settings, args.tolerance)
    code = exit_code(settings) if completed else EXIT_INTERRUPTED
    costs = context_costs(settings)
    findings = deployment_findings(settings, bests, args.gpu_hour)
    text, page = settings_report(settings, pairs, slos, code, costs, deployed=findings)
    headline, _, _ = text.partition("\n")
    result = {
        "exit_code": code,
        "headline": headline,
        "best": compared_best(settings, pairs),
        "best_for": bests,
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


def _settings_of(args: argparse.Namespace, deployments: Mapping[str, Deployment]) -> list[Setting]:
    """All combinations of the variables and the deployments. Raises ConfigError."""
    variables = [study.parse_variable(text) for text in args.variables]
    if not deployments:
        return study.all_settings(variables)
    for variable in variables:
        if any(setting.server for setting in variable):
            raise ConfigError(
                f"{variable[0].name} is given with --deployments: expected flags of servers in "
                'that file; try args = "--max-num-seqs 16" there.'
            )
    return study.all_settings([study.deployment_settings(deployments), *variables])


def _check_commands(
    start: StartOptions,
    settings: list[Setting],
    deployments: Mapping[str, Deployment],
    out: Path,
) -> None:
    """Raises ConfigError for a setting with which vLLM could not be started."""
    for setting in settings:
        if not setting.deployment:
            command_line(start, setting.server, 0)
    for deployment in deployments.values():
        for launch in launches(deployment, (), out):
            command_line(launch.options, launch.more_args, 0)


def _compared(settings: list[Setting], tolerance: float) -> tuple[list[Comparison], list[Best]]:
    """Every two settings; of deployments also which is best for what."""
    if any(setting.deployment for setting in settings):
        return compare_deployments(settings, tolerance)
    return compare_settings(settings, tolerance), []
