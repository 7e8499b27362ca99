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
        "what loads such as '2 x knee' refer to; default: the file's knee",
        positive_number("--knee"),
        "N",
    ),
    number_option("--max-users", "no phase and no burst goes beyond", 512),
    Option(
        "--max-rate", "no phase and no burst goes beyond", Rate.parser("--max-rate"), "R", "512/s"
    ),
    Option(
        "--allow-host",
        "a host that is not this machine may be loaded; may be repeated",
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
        help="rehearse overload, failure and recovery; 99 if what the file expects is not true",
        description="Runs the phases of load of a TOML file behind a balancer of its own, kills, "
        "pauses, slows or cuts off replicas as it says, and judges what it expects. Acts only on "
        "what it started and on what the file names.",
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
        help=f"the drill, as docs/drills.md describes it, or one that ships: {names}",
    )
    Option("--print", "print the file, as a start for your own; nothing is run", None).declare(
        parser
    )
    declare(parser.add_argument_group("limits"), LIMITS)
    declare(parser.add_argument_group("vLLM, in place of the file's simulated engines"), START)
    declare(parser.add_argument_group("output"), OUTPUT)
    parser.set_defaults(execute=partial(call, "harness.cli.drill_work:execute"))
