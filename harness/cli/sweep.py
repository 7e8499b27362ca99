"""`vllm-harness sweep [URL] --users 1,2,4`: hold several levels in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.cli import groups, plain
from harness.cli.parsing import levels, paste
from harness.study.options import SweepOptions

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "sweep",
        usage="%(prog)s [URL] --users N,N,... [--duration TIME | --requests N] [OPTION ...]",
        help="hold several numbers of users in turn: one steps.csv",
        description="Holds each level as `run` does, in the order given, and writes one steps.csv. "
        "Without a URL it measures the embedded engine.",
        epilog=paste(
            "vllm-harness sweep --users 1,2,4,8,16 --duration 10s",
            "vllm-harness sweep http://127.0.0.1:8000 --users 1,8,64 --duration 1m",
            "vllm-harness sweep http://127.0.0.1:8000 --users 4,8 --requests 200 --json -",
        ),
    )
    groups.target(parser)
    groups.load(parser)
    parser.add_argument(
        "--users",
        type=levels("--users"),
        required=True,
        metavar="N,N,...",
        help="concurrent requests of each level",
    )
    groups.level(parser)
    groups.objectives(parser)
    groups.output(parser)
    groups.embedded_engine(parser)
    parser.set_defaults(execute=execute)


def options(args: argparse.Namespace) -> SweepOptions:
    """Plain data from parsed arguments. Raises ConfigError."""
    return SweepOptions(
        target=plain.target_options(args),
        load=plain.load_options(args),
        output=plain.output_options(args, "sweep"),
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
