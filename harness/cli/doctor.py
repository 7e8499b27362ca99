"""`vllm-harness doctor`: can this machine measure, and how much? One line per check."""

from __future__ import annotations

from harness.cli.parsing import Subparsers, add_command
from harness.core.value_parsers import duration
from harness.run.option import Option, declare, number_option


def add(commands: Subparsers) -> None:
    parser = add_command(commands, "doctor", "harness.cli.doctor_work:execute")
    itl = "Send a token of each stream per TIME."
    options = (
        Option("--quick", "Skip the 20-second measurement.", None),
        number_option("--users", "Report whether N streams fit."),
        Option("--itl", itl, duration("--itl", "20ms"), "TIME", "20ms"),
    )
    declare(parser, options)
