"""`vllm-harness report DIR`: make a run folder's results again from its records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli import groups
from harness.cli.parsing import paste
from harness.study.options import ReportOptions

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "report",
        help="recompute a run folder's results and reports, without a server",
        description="Replays the run's search on its records and writes result.json, "
        "requests.parquet, steps.csv, report.html and report.md again. A folder that an interrupt "
        "left behind is fine: what was measured is reported.",
        epilog=paste(
            "vllm-harness report reports/knee-20261121-093000",
            "vllm-harness report reports/knee-20261121-093000 --json -",
            "vllm-harness report reports/run-20261121-101500 --compat vllm-bench,guidellm",
        ),
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="a run folder")
    groups.json_file(parser)
    groups.compat(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Run the study; its exit code."""
    wanted = ReportOptions(folder=args.folder, json_to=args.json, compat=tuple(args.compat))
    from harness.cli.front import Front  # noqa: PLC0415 - heavy: see app.py
    from harness.study.recompute import run_report  # noqa: PLC0415 - heavy: see app.py

    return run_report(wanted, Front())
