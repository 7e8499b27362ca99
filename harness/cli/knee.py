"""`vllm-harness knee [URL]`: find the knee."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.cli import groups, plain
from harness.cli.parsing import count, duration, paste
from harness.study.options import KneeOptions
from harness.units import SECOND

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "knee",
        usage="%(prog)s [URL] [OPTION ...]",
        help="find how many concurrent requests keep every SLO, and what stops it there",
        description="Steps the load up until an SLO breaks, closes in on the knee, and explains "
        "it. Without a URL it measures the embedded engine; without an SLO it looks for the power "
        "knee.",
        epilog=paste(
            "vllm-harness knee --slo ttft_p95=500ms --budget 90s",
            "vllm-harness knee http://127.0.0.1:8000 --slo ttft_p95=500ms --slo itl_p95=50ms",
            "vllm-harness knee http://127.0.0.1:8000 --slo e2e_p95=10s --plan-users 2000 --dry-run",
        ),
    )
    groups.target(parser)
    groups.load(parser)
    groups.objectives(parser)
    search = parser.add_argument_group("search")
    groups.user_range(search)
    search.add_argument(
        "--budget",
        type=duration("--budget"),
        default=600 * SECOND,
        metavar="TIME",
        help="the load ends within this time; default: 10m",
    )
    search.add_argument(
        "--plan-users",
        type=count("--plan-users"),
        metavar="N",
        help="also say how many replicas N concurrent requests need",
    )
    groups.output(parser)
    groups.embedded_engine(parser)
    parser.set_defaults(execute=execute)


def options(args: argparse.Namespace) -> KneeOptions:
    """Plain data from parsed arguments. Raises ConfigError."""
    return KneeOptions(
        target=plain.target_options(args),
        load=plain.load_options(args),
        output=plain.output_options(args, "knee"),
        slos=tuple(args.slo),
        min_users=args.min_users,
        max_users=args.max_users,
        budget_ns=args.budget,
        max_errors=args.max_errors,
        plan_users=args.plan_users,
        dry_run=args.dry_run,
    )


def execute(args: argparse.Namespace) -> int:
    """Run the study; its exit code."""
    from harness.cli.start import start  # noqa: PLC0415 - heavy: see app.py

    return start(options(args))
