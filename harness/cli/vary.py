"""`vllm-harness vary NAME=V,V -- knee ...`: measure with each of several settings."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.by_name import call
from harness.cli.inner_command import INNER
from harness.cli.parsing import examples
from harness.core.value_parsers import share
from harness.run.option import Option, declare
from harness.run.option_table import GPU_HOUR, JSON, OUTPUT, START

if TYPE_CHECKING:
    from harness.cli.parsing import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "vary",
        usage="%(prog)s [NAME=VALUE,VALUE ...] [OPTION ...] -- (knee | run | sweep) [OPTION ...]",
        help="measure with each of several settings, restarting vLLM between them",
        description="Starts vLLM with each value of server.FLAG, runs the command after -- against "
        "it, and reports which setting is best for the SLO and what it costs. Two settings are "
        "measured in the order A B B A. Options of that command can be varied too, on one server, "
        "in the order A B C C B A. --deployments compares ways to use several GPUs.",
        epilog=examples(
            "vllm-harness vary server.max-num-seqs=8,16 --model-dir DIR -- knee --slo ttft_p95=1s",
            "vllm-harness vary history=full,budget:2048,last:4 -- knee --embedded --workload agent "
            "--slo ttft_p95=500ms",
            "vllm-harness vary --deployments gpus.toml --keep --model-dir DIR -- knee "
            "--slo ttft_p95=500ms --slo itl_p95=50ms",
        ),
    )
    parser.takes_command = INNER
    parser.add_argument(
        "variables",
        nargs="*",
        metavar="NAME=VALUE,VALUE",
        help="Vary server.FLAG of vLLM, or an option of the command after --. A switch takes "
        " true and false; default leaves the option out. Several are combined in all ways.",
    )
    deployments = Option(
        "--deployments",
        "Measure with each deployment of this TOML file: replicas, one server of several GPUs, or "
        "prefill apart from decode.",
        Path,
        "FILE",
    )
    keep = Option(
        "--keep",
        "Start all servers at once and keep them, each measured in turn: A B C C B A.",
        None,
    )
    declare(parser.add_argument_group("server"), [*START, deployments, keep])
    tolerance = Option(
        "--tolerance", "Let a setting be this much worse.", share("--tolerance"), "SHARE", "5%"
    )
    once = Option(
        "--once", "Measure each setting once, in half the time, without repetition.", None
    )
    declare(parser.add_argument_group("output"), [once, OUTPUT[0], JSON, tolerance, GPU_HOUR])
    parser.set_defaults(execute=partial(call, "harness.cli.vary_work:execute"))
