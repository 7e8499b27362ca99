"""`drill FILE`: rehearse overload, failure and recovery, and judge what the file expects."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from harness.cli.by_name import call
from harness.cli.parsing import examples
from harness.core.load import Rate
from harness.core.shipped import shipped_files
from harness.core.value_parsers import positive_number
from harness.run.option import Option, declare, number_option
from harness.run.option_table import OUTPUT, START

if TYPE_CHECKING:
    from harness.cli.parsing import Subparsers

LIMITS = (
    Option(
        "--knee",
        "Take this as the knee of loads such as '2 x knee'. Default: that of the file.",
        positive_number("--knee"),
        "N",
    ),
    number_option("--max-users", "Go no higher in any phase or burst.", 512),
    Option(
        "--max-rate", "Go no higher in any phase or burst.", Rate.parser("--max-rate"), "R", "512/s"
    ),
    Option(
        "--allow-host",
        "Allow load on this host, which is not this machine. Repeatable.",
        str,
        "NAME",
        action="append",
    ),
)


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "drill",
        usage="%(prog)s FILE [OPTION ...]",
        help="rehearse overload, failure and recovery; exits 99 if an expectation fails",
        description="Runs the phases of load of a TOML file behind its own balancer, kills, "
        "pauses, slows or cuts off replicas as the file says, and judges the file's expectations. "
        "It acts only on what it started and on what the file names.",
        epilog=examples(
            "vllm-harness drill overload --knee 8 --model-dir DIR",
            "vllm-harness drill replica-death --print",
            "vllm-harness drill staging.toml --allow-host staging.example --max-rate 20/s",
        ),
    )
    names = ", ".join(shipped_files("drills"))
    parser.add_argument(
        "file",
        metavar="FILE",
        help=f"Run this drill (docs/drills.md), or one that ships: {names}.",
    )
    Option("--print", "Print the file, as a start for your own, and run nothing.", None).declare(
        parser
    )
    declare(parser.add_argument_group("limits"), LIMITS)
    declare(parser.add_argument_group("vLLM, in place of the file's simulated engines"), START)
    declare(parser.add_argument_group("output"), OUTPUT)
    parser.set_defaults(execute=partial(call, "harness.cli.drill_work:execute"))
