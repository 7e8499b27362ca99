"""`vllm-harness knee URL`: find the knee."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.cli import options_from_args as plain
from harness.cli.parsing import examples
from harness.errors import ConfigError
from harness.study.option_table import SEARCH, declare
from harness.study.study_options import KneeOptions

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
        epilog=examples(
            "vllm-harness knee --embedded --slo ttft_p95=500ms --budget 90s",
            "vllm-harness knee http://127.0.0.1:8000 --slo ttft_p95=500ms --slo itl_p95=50ms",
            "vllm-harness knee http://127.0.0.1:8000 --slo e2e_p95=10s --plan-users 2000 --dry-run",
        ),
    )
    plain.target(parser)
    plain.load_and_objectives(parser)
    declare(parser.add_argument_group("search"), SEARCH)
    plain.output(parser)
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
    from harness.cli.start import start_study  # noqa: PLC0415 - heavy: see app.py

    return start_study(options(args))
