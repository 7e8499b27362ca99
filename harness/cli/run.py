"""`vllm-harness run --users N` and `sweep --rate 5,10,20`: hold given levels in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from harness.cli import options_from_args as plain
from harness.cli.parsing import examples
from harness.study.option import (
    declare,
    duration,
    level_list,
    number_option,
    rate,
    rate_list,
    whole_number,
)
from harness.study.option_table import OPEN_LOOP

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from harness.cli.parsing import Subparsers

    Levels = Callable[[str], tuple[int, ...]]

SWEEP: Final = "sweep"


def add_run(commands: Subparsers) -> None:
    """Declare `run`."""
    one, rate_one = whole_number("--users"), rate("--rate")
    _add(
        commands,
        "run",
        lambda text: (one(text),),
        lambda text: (rate_one(text),),
        "",
        usage="%(prog)s (URL | --embedded) (--users N | --rate R/s) [OPTION ...]",
        help="hold one number of concurrent users, or one rate, and measure it",
        description="Holds one number of concurrent users (closed loop), or one rate of requests "
        "(open loop: a request goes out when it is due, whether or not others have ended), for a "
        "time or a number of requests. --embedded measures a simulated vLLM in place of a server.",
        epilog=examples(
            "vllm-harness run --embedded --users 16 --duration 30s",
            "vllm-harness run http://127.0.0.1:8000 --users 64 --duration 2m --slo ttft_p95=500ms",
            "vllm-harness run http://127.0.0.1:8000 --rate 20/s --requests 500 --json -",
        ),
    )


def add_sweep(commands: Subparsers) -> None:
    """Declare `sweep`."""
    _add(
        commands,
        SWEEP,
        level_list("--users"),
        rate_list("--rate"),
        ",...",
        usage="%(prog)s (URL | --embedded) (--users N,N,... | --rate R,R,...) [OPTION ...]",
        help="hold several numbers of users or rates in turn, or send each a batch of requests",
        description="Holds each level as `run` does, in the given order, and writes "
        "concurrency_sweep.csv. With --batch, sends so many requests at each level, and once one "
        "at a time, waits for the last answer, and writes batching.json and "
        "batching_benchmark.md. --embedded measures a simulated vLLM in place of a server.",
        epilog=examples(
            "vllm-harness sweep --embedded --users 1,2,4,8,16 --duration 10s",
            "vllm-harness sweep http://127.0.0.1:8000 --rate 5,10,20 --duration 1m",
            "vllm-harness sweep http://127.0.0.1:8000 --users 1,4,8,16 --batch 64 --repeats 3",
        ),
    )


def _add(
    commands: Subparsers, name: str, users: Levels, rates: Levels, more: str, **texts: Any
) -> None:
    parser = commands.add_parser(name, **texts)
    plain.target(parser)
    level = parser.add_mutually_exclusive_group()
    level.add_argument(
        "--users",
        type=users,
        metavar=f"N{more and ',N,...'}",
        help="concurrent requests of a level",
    )
    level.add_argument(
        "--rate", type=rates, metavar=f"R{more and ',R,...'}", help="requests per second of a level"
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--duration", type=duration("--duration"), metavar="TIME", help="default: 30s"
    )
    declare(either, [number_option("--requests", "instead of a duration", example=500)])
    if name == SWEEP:
        batch = "instead: a batch of so many requests, to its last answer"
        declare(either, [number_option("--batch", batch, example=64)])
        turns = "times to go through the levels; default: 3 with --batch, else 1"
        declare(parser, [number_option("--repeats", turns, example=3)])
    declare(parser, OPEN_LOOP)
    plain.load_and_objectives(parser)
    plain.output(parser)
    parser.set_defaults(execute=lambda args: _execute(args, name))


def _execute(args: argparse.Namespace, command: str) -> int:
    from harness.cli.start import start_study  # noqa: PLC0415 - heavy: see app.py

    return start_study(plain.run_options(args, command))
