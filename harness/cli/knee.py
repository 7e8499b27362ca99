"""`vllm-harness knee URL`: find the knee."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli import groups, plain
from harness.cli.parsing import number, paste, share
from harness.errors import ConfigError
from harness.study.options import KneeOptions, budget_ns
from harness.units import SECOND

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "knee",
        usage="%(prog)s (URL | --embedded) [OPTION ...]",
        help="find how many concurrent requests meet every SLO, and what limits them",
        description="Steps the load up until an SLO is missed, closes in on the knee, and explains "
        "it. Without an SLO it looks for the power knee, where throughput over latency peaks. "
        "--embedded measures a simulated vLLM in place of a server.",
        epilog=paste(
            "vllm-harness knee --embedded --slo ttft_p95=500ms --budget 90s",
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
        type=partial(budget_ns, what="--budget"),
        default=600 * SECOND,
        metavar="TIME",
        help="the load ends within this time; default: 10m",
    )
    replicas = "also report how many replicas N concurrent requests need"
    number(search, "--plan-users", replicas, example=2000)
    gate = "the exit code says whether N users are held: 0, 99 if not, 6 if inconclusive"
    number(search, "--at-least", gate, example=64)
    search.add_argument(
        "--baseline",
        type=Path,
        metavar="DIR",
        help="a run folder: 99 if this run is shown to be worse, as `compare` has it",
    )
    search.add_argument(
        "--tolerance",
        type=share("--tolerance"),
        metavar="SHARE",
        help="how much worse than the baseline it may be; default: 5%%",
    )
    groups.output(parser)
    parser.set_defaults(execute=execute)


def options(args: argparse.Namespace) -> KneeOptions:
    """Plain data from parsed arguments. Raises ConfigError."""
    if args.tolerance is not None and args.baseline is None:
        raise ConfigError(
            "--tolerance is given without --baseline: expected a run folder to compare with; "
            "try --baseline reports/main."
        )
    return KneeOptions(
        target=plain.target_options(args),
        load=plain.load_options(args, "--max-users", args.max_users),
        output=plain.output_options(args, "knee"),
        slos=tuple(args.slo),
        min_users=args.min_users,
        max_users=args.max_users,
        budget_ns=args.budget,
        max_errors=args.max_errors,
        plan_users=args.plan_users,
        at_least=args.at_least,
        baseline=args.baseline,
        tolerance=0.05 if args.tolerance is None else args.tolerance,
        dry_run=args.dry_run,
    )


def execute(args: argparse.Namespace) -> int:
    """Run the study; its exit code."""
    from harness.cli.start import start  # noqa: PLC0415 - heavy: see app.py

    return start(options(args))
