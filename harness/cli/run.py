"""`vllm-harness run [URL] --users N`: hold one level and measure it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.cli import groups, plain
from harness.cli.parsing import count, paste
from harness.study.options import RunOptions

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "run",
        usage="%(prog)s [URL] --users N [--duration TIME | --requests N] [OPTION ...]",
        help="hold one number of concurrent users and measure it",
        description="Holds one number of concurrent users for a time or a number of requests. "
        "Without a URL it measures the embedded engine.",
        epilog=paste(
            "vllm-harness run --users 16 --duration 30s",
            "vllm-harness run http://127.0.0.1:8000 --users 64 --duration 2m --slo ttft_p95=500ms",
            "vllm-harness run http://127.0.0.1:8000 --users 8 --requests 500 --json -",
        ),
    )
    groups.target(parser)
    groups.load(parser)
    parser.add_argument(
        "--users", type=count("--users"), required=True, metavar="N", help="concurrent requests"
    )
    groups.level(parser)
    groups.objectives(parser)
    groups.output(parser)
    groups.embedded_engine(parser)
    parser.set_defaults(execute=execute)


def options(args: argparse.Namespace) -> RunOptions:
    """Plain data from parsed arguments. Raises ConfigError."""
    return RunOptions(
        target=plain.target_options(args),
        load=plain.load_options(args),
        output=plain.output_options(args, "run"),
        users=args.users,
        duration_ns=plain.duration_of(args),
        requests=args.requests,
        slos=tuple(args.slo),
        max_errors=args.max_errors,
        dry_run=args.dry_run,
    )


def execute(args: argparse.Namespace) -> int:
    """Run the study; its exit code."""
    from harness.cli.start import start  # noqa: PLC0415 - heavy: see app.py

    return start(options(args))
