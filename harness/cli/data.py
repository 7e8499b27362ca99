"""`vllm-harness data FILE`: what a file of own data holds; or make one from a log."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.parsing import examples
from harness.errors import EXIT_OK
from harness.load.workloads import WORKLOADS
from harness.study.option import Option, declare, writable
from harness.study.option_table import DATA

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "data",
        help="show what a file for --data holds, or make one from a log of conversations",
        description="Checks each line and shows the lengths, the arrival rate, the shared prefixes "
        "and the prefix-cache hits to expect. With --convert, first makes such a file from a log "
        "with conversation_id, role, content and tools (CSV or JSON lines): a request, with its "
        "history, for each turn of the assistant.",
        epilog=examples(
            "vllm-harness data chats.jsonl",
            "vllm-harness data trace.jsonl --speed 2",
            "vllm-harness data log.csv --convert chats.jsonl",
        ),
    )
    parser.add_argument("file", metavar="FILE", help="one JSON object per line, or a log")
    out = "the file to make of a log"
    declare(parser, [Option("--convert", out, partial(writable, "--convert"), "OUT"), DATA[2]])
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Print the summary. Raises ConfigError."""
    from harness.load.conversation_log import convert  # noqa: PLC0415 - heavy: see app.py
    from harness.load.own_data import DataSource  # noqa: PLC0415 - as above
    from harness.report.data_summary import data_summary  # noqa: PLC0415 - as above
    from harness.report.numbers import count_of  # noqa: PLC0415 - as above

    if args.convert:
        made = convert(Path(args.file), Path(args.convert))
        words = "message", "conversation", "request"
        sys.stdout.write("{} of {}: {}\n".format(*map(count_of, made, words)))
    data = DataSource(args.convert or args.file, WORKLOADS["chat"], speed=args.speed or 1.0)
    sys.stdout.write(data_summary(data))
    return EXIT_OK
