"""`vllm-harness doctor`: can this machine measure, and how much? One line per check."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from harness.cli.parsing import duration, number, paste
from harness.errors import ConfigError
from harness.units import MS

if TYPE_CHECKING:
    import argparse

    from harness.cli.checks import Finding
    from harness.cli.parsing import Subparsers

EXIT_SOMETHING_WRONG: Final = 1


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "doctor",
        help="check that this machine can measure",
        description="Checks Python, Locust, open files, kernel stamps, the reader, cores, clock, "
        "disk and GPUs, then measures in 20 seconds how many streams this machine times within "
        "1% of what a server sent. Ends with 1 when a check fails; a warning does not count as "
        "failing.",
        epilog=paste(
            "vllm-harness doctor",
            "vllm-harness doctor --users 300 --itl 10ms",
            "ulimit -n 65536; vllm-harness doctor --quick",
        ),
    )
    parser.add_argument("--quick", action="store_true", help="skip the 20-second measurement")
    number(parser, "--users", "report whether N streams fit")
    parser.add_argument(
        "--itl", type=duration("--itl", "20ms"), default=20 * MS, metavar="TIME",
        help="with one token per TIME on each; default: 20ms",
    )  # fmt: skip
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Print the checks; 1 when one failed. Raises ConfigError."""
    if args.quick and args.users:
        raise ConfigError(
            f"--users {args.users} asks whether a load fits and --quick measures no ceiling: "
            "expected one of the two; leave out --quick."
        )
    from harness.cli.checks import CHECKS, Level  # noqa: PLC0415 - heavy: see app.py

    worst = 0
    for name, check in CHECKS.items():
        found = check()
        _say(name, found)
        worst = max(worst, EXIT_SOMETHING_WRONG if found.level is Level.fail else 0)
    if not args.quick and not worst:
        _ceiling(args.users, args.itl)
    return worst


def _ceiling(users: int | None, itl_ns: int) -> None:
    from harness.cli.timing import plan, timing  # noqa: PLC0415 - as above
    from harness.study.ceiling import measure_ceiling  # noqa: PLC0415 - as above

    found = measure_ceiling()
    _say("timing", timing(found))
    if users:
        _say("plan", plan(found, users, itl_ns))


def _say(name: str, found: Finding) -> None:
    remedy = f"  -> {found.remedy}" if found.remedy else ""
    sys.stdout.write(f"{found.level.value:<4}  {name:<15} {found.what}{remedy}\n")
    sys.stdout.flush()
