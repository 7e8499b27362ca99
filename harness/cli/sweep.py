"""`vllm-harness sweep URL --users 1,2,4`: hold several levels in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.cli import groups, plain
from harness.cli.parsing import levels, paste

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "sweep",
        usage="%(prog)s (URL | --embedded) --users N,N,... [OPTION ...]",
        help="hold several numbers of users in turn: one steps.csv",
        description="Holds each level as `run` does, in the order given, and writes one steps.csv. "
        "--embedded measures a simulated vLLM in place of a server.",
        epilog=paste(
            "vllm-harness sweep --embedded --users 1,2,4,8,16 --duration 10s",
            "vllm-harness sweep http://127.0.0.1:8000 --users 1,8,64 --duration 1m",
            "vllm-harness sweep http://127.0.0.1:8000 --users 4,8 --requests 200 --json -",
        ),
    )
    groups.held(parser, levels("--users"), "N,N,...")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Run the study; its exit code."""
    from harness.cli.start import start  # noqa: PLC0415 - heavy: see app.py

    return start(plain.run_options(args, "sweep", args.users))
