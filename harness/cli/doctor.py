"""`vllm-harness doctor`: can this machine measure? One line per check, with a remedy."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from harness.cli.parsing import paste

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers

EXIT_SOMETHING_WRONG: Final = 1


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "doctor",
        help="check that this machine can measure",
        description="Checks Python, Locust, open files, kernel stamps, cores, clock and disk. "
        "Ends with 1 when a check fails; a warning does not count as failing.",
        epilog=paste(
            "vllm-harness doctor",
            "vllm-harness doctor && vllm-harness knee --slo ttft_p95=500ms --budget 90s",
            "ulimit -n 65536; vllm-harness doctor",
        ),
    )
    parser.set_defaults(execute=execute)


def execute(_args: argparse.Namespace) -> int:
    """Print the checks; 1 when one failed."""
    from harness.cli.checks import CHECKS, Level  # noqa: PLC0415 - heavy: see app.py

    worst = 0
    for name, check in CHECKS.items():
        found = check()
        remedy = f"  -> {found.remedy}" if found.remedy else ""
        sys.stdout.write(f"{found.level.value:<4}  {name:<15} {found.what}{remedy}\n")
        worst = max(worst, EXIT_SOMETHING_WRONG if found.level is Level.fail else 0)
    return worst
