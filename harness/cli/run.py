"""`vllm-harness run URL --users N`: hold one level and measure it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.cli import groups, plain
from harness.cli.parsing import count, paste

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "run",
        usage="%(prog)s (URL | --embedded) --users N [--duration TIME | --requests N] [OPTION ...]",
        help="hold one number of concurrent users and measure it",
        description="Holds one number of concurrent users for a time or a number of requests. "
        "--embedded measures a simulated vLLM in place of a server.",
        epilog=paste(
            "vllm-harness run --embedded --users 16 --duration 30s",
            "vllm-harness run http://127.0.0.1:8000 --users 64 --duration 2m --slo ttft_p95=500ms",
            "vllm-harness run http://127.0.0.1:8000 --users 8 --requests 500 --json -",
        ),
    )
    groups.held(parser, count("--users"), "N")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Run the study; its exit code."""
    from harness.cli.start import start  # noqa: PLC0415 - heavy: see app.py

    return start(plain.run_options(args, "run", (args.users,)))
