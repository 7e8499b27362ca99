"""`vllm-harness vary NAME=V,V -- knee ...`: measure with each of several settings."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Final

from harness.cli.parsing import examples
from harness.core.value_parsers import share
from harness.errors import EXIT_INTERRUPTED, ConfigError
from harness.run.option import Option, declare
from harness.run.option_table import JSON, OUTPUT, START
from harness.run.options_from_args import default_folder, start_options

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from harness.cli.parsing import Subparsers

INNER: Final = ("knee", "run", "sweep")
NOT_YET: Final = "http://started-here"  # in place of a server that is not started yet
OURS: Final = ("out", "json", "junit", "dry_run", "prove")  # not of a run of `vary`


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "vary",
        usage="%(prog)s NAME=VALUE,VALUE ... [OPTION ...] -- (knee | run | sweep) [OPTION ...]",
        help="measure with each of several settings, restarting vLLM between them",
        description="Starts vLLM with each value of server.FLAG, runs the command after -- against "
        "it, and says which setting is best for the SLO and what it costs. Two settings are "
        "measured in the order A B B A. Options of that command can be varied too, on one server, "
        "in the order A B C C B A.",
        epilog=examples(
            "vllm-harness vary server.max-num-seqs=8,16 --model-dir DIR -- knee --slo ttft_p95=1s",
            "vllm-harness vary server.enable-chunked-prefill=true,false --model-dir DIR -- run "
            "--users 8",
            "vllm-harness vary history=full,budget:2048,last:4 -- knee --embedded --workload agent "
            "--slo ttft_p95=500ms",
        ),
    )
    parser.takes_command = INNER
    parser.add_argument(
        "variables", nargs="+", metavar="NAME=VALUE,VALUE",
        help="server.FLAG of vLLM, or an option of the command after --; true and false for a "
        "switch, default for none; several: all combinations",
    )  # fmt: skip
    declare(parser.add_argument_group("server"), START)
    tolerance = Option("--tolerance", "as of compare", share("--tolerance"), "SHARE", "5%")
    once = Option("--once", "each setting once: half the time, no repetition", None)
    declare(parser.add_argument_group("output"), [once, OUTPUT[0], JSON, tolerance])
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Check everything, measure, write the files. Raises ConfigError, RunFolderError."""
    from harness.cli.start import write_json  # noqa: PLC0415 - heavy: see app.py
    from harness.compare.compare_folders import compare_settings  # noqa: PLC0415 - as above
    from harness.lifecycle import vary_settings as study  # noqa: PLC0415 - as above
    from harness.lifecycle.context_cost import context_costs  # noqa: PLC0415 - as above
    from harness.lifecycle.vllm_start import StartOptions, command_line  # noqa: PLC0415 - as above
    from harness.records.folder_writer import RunFolder  # noqa: PLC0415 - as above
    from harness.report.comparison_report import settings_report  # noqa: PLC0415 - as above
    from harness.search.comparison import best_setting, exit_code  # noqa: PLC0415 - as above

    settings = study.all_settings([study.parse_variable(text) for text in args.variables])
    given = start_options(args)
    start = given if given != StartOptions() or any(one.server for one in settings) else None
    slos = check_inner(args.inner, [one.client for one in settings], started=start is not None)
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
    result = {"exit_code": code, "headline": text.partition("\n")[0],
              "best": best_setting(settings, pairs)[0], "command": args.inner, "slos": slos,
              "settings": settings, "comparisons": pairs, "context_costs": costs}  # fmt: skip
    folder.write_json("vary.json", result)
    folder.write("vary.md", text)
    folder.write("vary.html", page)
    stream.write(f"\n{text}All of it: {out}\n")
    if args.json:
        write_json(args.json, result)
    return code


def check_inner(words: Sequence[str], more: Sequence[Sequence[str]], *, started: bool) -> list[str]:
    """Refuse what a run would; returns the SLOs of all. Raises ConfigError, RunFolderError."""
    from harness.cli.app import parser  # noqa: PLC0415 - it imports this file

    if not words or words[0] not in INNER:
        raise ConfigError(
            f"the command to measure is {' '.join(words[:1])!r}: expected one of "
            f"{', '.join(INNER)} after --; try -- knee --slo ttft_p95=500ms."
        )
    slos, loads = None, set[str]()
    for last in more:
        line = [words[0], *[NOT_YET] * started, *words[1:], *last]
        args = parser().parse_args(line)
        if taken := next((name for name in OURS if getattr(args, name, None)), ""):
            raise ConfigError(
                f"--{taken.replace('_', '-')} is given to each run of {words[0]}: expected it "
                "before the --, or not at all; try --out DIR there."
            )
        loads |= {args.load if words[0] == "knee" else "users" if args.users else "rate"}
        if len(loads) > 1:
            raise ConfigError(
                "some settings have levels of users and others rates: expected one kind, or they "
                "cannot be compared; try --load rate after --."
            )
        args.dry_run = True
        with redirect_stdout(io.StringIO()):
            args.execute(args)
        slos = [slo for slo in map(str, args.slo) if slos is None or slo in slos]
    return slos or []
