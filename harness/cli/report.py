"""`vllm-harness report DIR`: make a run folder's results again from its records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.parsing import examples
from harness.study.option_table import JSON, OTHER_TOOLS, declare

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "report",
        help="recompute a run folder's results and reports, without a server",
        description="Replays the run's search on its records and writes result.json, "
        "requests.parquet, levels.csv, report.html and report.md again. A folder that an interrupt "
        "left behind is fine: what was measured is reported.",
        epilog=examples(
            "vllm-harness report reports/knee-20261121-093000",
            "vllm-harness report reports/knee-20261121-093000 --json -",
            "vllm-harness report reports/run-20261121-101500 --compat vllm-bench,guidellm",
        ),
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="a run folder")
    declare(parser, [JSON, OTHER_TOOLS])
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Make the results again; the exit code that the run itself had. Raises RunFolderError."""
    from harness.cli.terminal import TerminalUi  # noqa: PLC0415 - heavy: see app.py
    from harness.study.conduct import conclude  # noqa: PLC0415 - as above

    return conclude(args.folder, args.json, TerminalUi(), tuple(args.compat)).exit_code
