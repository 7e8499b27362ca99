"""`vllm-harness doctor`: can this machine measure, and how much? One line per check."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from harness.cli.parsing import Subparsers, add_command
from harness.core.value_parsers import duration
from harness.errors import ConfigError
from harness.run.option import Option, declare, number_option

if TYPE_CHECKING:
    from harness.run.checks import CheckResult

EXIT_CHECK_FAILED: Final = 1


def add(commands: Subparsers) -> None:
    parser = add_command(commands, "doctor", execute)
    each = "with one token per TIME on each"
    options = (
        Option("--quick", "skip the 20-second measurement", None),
        number_option("--users", "report whether N streams fit"),
        Option("--itl", each, duration("--itl", "20ms"), "TIME", "20ms"),
    )
    declare(parser, options)


def execute(args: argparse.Namespace) -> int:
    """Print the checks; 1 when one failed. Raises ConfigError."""
    if args.quick and args.users:
        raise ConfigError(
            f"--users {args.users} asks whether a load fits and --quick measures no ceiling: "
            "expected one of the two; leave out --quick."
        )
    from harness.run.checks import CHECKS, Severity, check_ceiling, check_plan  # noqa: PLC0415 - heavy: see app.py

    worst = 0
    for name, check in CHECKS.items():
        found = check()
        _say(name, found)
        worst = max(worst, EXIT_CHECK_FAILED if found.level is Severity.fail else 0)
    if not args.quick and not worst:
        from harness.run.ceiling import measure_ceiling  # noqa: PLC0415 - imports Locust

        ceiling = measure_ceiling()
        _say("timing", check_ceiling(ceiling))
        if args.users:
            _say("plan", check_plan(ceiling, args.users, args.itl))
    return worst


def _say(name: str, found: CheckResult) -> None:
    remedy = f"  -> {found.remedy}" if found.remedy else ""
    sys.stdout.write(f"{found.level.value:<4}  {name:<15} {found.what}{remedy}\n")
    sys.stdout.flush()
