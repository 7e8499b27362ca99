"""`vllm-harness vary NAME=V,V -- knee ...`: measure with each setting, on servers started for it."""

from __future__ import annotations

import io
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.cli.options_from_args import start_options
from harness.cli.parsing import examples
from harness.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_SLO_MISSED,
    ConfigError,
    ServerUnreachable,
)
from harness.study.option_table import JSON, OUT, START, Option, declare, share
from harness.study.preflight import check_folder

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from harness.cli.parsing import Subparsers
    from harness.measure.search.comparison import Setting

INNER: Final = ("knee", "run", "sweep")
NOWHERE: Final = "http://127.0.0.1:1"  # in place of a server that is not started yet
OURS: Final = ("out", "json", "junit", "dry_run", "prove")  # not of a run of `vary`


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "vary",
        usage="%(prog)s NAME=VALUE,VALUE ... [OPTION ...] -- (knee | run | sweep) [OPTION ...]",
        help="measure with each of several settings, restarting vLLM between them",
        description="Starts vLLM with each value of server.FLAG, runs the command after -- against "
        "it, and says which setting is best for the SLO and what it costs. Two settings are "
        "measured in the order A B B A. Options of that command can be varied too, on one server.",
        epilog=examples(
            "vllm-harness vary server.max-num-seqs=8,16 --model-dir DIR -- knee --slo ttft_p95=1s",
            "vllm-harness vary server.enable-chunked-prefill=true,false --model-dir DIR -- run "
            "--users 8",
            "vllm-harness vary max-num-seqs=8,16 -- knee --embedded --slo ttft_p95=500ms",
        ),
    )
    parser.takes_command = True
    parser.add_argument(
        "variables", nargs="+", metavar="NAME=VALUE,VALUE",
        help="server.FLAG of vLLM, or an option of the command after --; true and false for a "
        "switch, default for none; several: all combinations",
    )  # fmt: skip
    declare(parser.add_argument_group("server"), START)
    tolerance = Option("--tolerance", "as of compare", share("--tolerance"), "SHARE", "5%")
    declare(parser.add_argument_group("output"), [OUT, JSON, tolerance])
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Check everything, measure, write the files. Raises ConfigError, RunFolderError."""
    from harness.measure.typed_json import to_json  # noqa: PLC0415 - heavy: see app.py
    from harness.report.comparison_report import settings_report  # noqa: PLC0415 - as above
    from harness.runfolder.folder_writer import RunFolder  # noqa: PLC0415 - as above
    from harness.study import vary_settings as study  # noqa: PLC0415 - as above
    from harness.study.compare_folders import compare_settings  # noqa: PLC0415 - as above

    settings = study.all_settings([study.parse_variable(text) for text in args.variables])
    start = start_options(args)
    out = args.out or Path("reports") / f"vary-{time.strftime('%Y%m%d-%H%M%S')}"
    check_folder(out)
    slos = check_inner(args.inner, settings, started=start is not None)
    stream = sys.stderr if args.json == "-" else sys.stdout
    folder = RunFolder.create(out)
    done = study.measure(study.in_order(settings, out), args.inner, start, stream)
    pairs = compare_settings(settings, args.tolerance)
    code = exit_code(settings) if done else EXIT_INTERRUPTED
    ...
