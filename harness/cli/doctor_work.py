"""`vllm-harness doctor`: can this machine measure, and how much? One line per check."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from harness.cli.by_name import call
from harness.errors import ConfigError
from harness.reader.cpu_limit import CpuLimit, read_cpu_limit
from harness.run.checks import (
    CHECKS,
    CheckResult,
    Severity,
    check_ceiling,
    check_plan,
    check_throttling,
)

if TYPE_CHECKING:
    import argparse

EXIT_CHECK_FAILED: Final = 1


def execute(args: argparse.Namespace) -> int:
    """Print the checks; 1 when one failed. Raises ConfigError."""
    if args.quick and args.users:
        raise ConfigError(
            f"--users {args.users} asks whether a load fits and --quick measures no ceiling: "
            "expected one of the two; leave out --quick."
        )
    worst = 0
    for name, check in CHECKS.items():
        checked = check()
        _say(name, checked)
        if checked.level is Severity.fail:
            worst = EXIT_CHECK_FAILED
    if not args.quick and not worst:
        before, began_s = read_cpu_limit(), time.monotonic()
        ceiling = call("harness.run.ceiling:measure_ceiling")  # imports Locust
        _say("timing", check_ceiling(ceiling))
        if before != CpuLimit():
            seconds = time.monotonic() - began_s
            throttling = check_throttling(before, read_cpu_limit(), seconds)
            _say("throttling", throttling)
            if throttling.level is Severity.fail:
                worst = EXIT_CHECK_FAILED
        if args.users:
            _say("plan", check_plan(ceiling, args.users, args.itl))
    return worst


def _say(name: str, checked: CheckResult) -> None:
    remedy = f"  -> {checked.remedy}" if checked.remedy else ""
    sys.stdout.write(f"{checked.level.value:<4}  {name:<15} {checked.what}{remedy}\n")
    sys.stdout.flush()
