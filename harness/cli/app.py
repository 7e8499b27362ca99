"""The command `vllm-harness`: run a subcommand and turn its end into an exit code.

Neither this module nor the parsers of the subcommands import anything heavy (a test checks that).
Each `execute` imports what it calls, so `--help` and invalid options answer at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from harness import __version__
from harness.cli import doctor, drill, engine, fit, idle, knee, locustfile, offline, serve, vary
from harness.cli.parsing import Parser, examples
from harness.errors import ConfigError, HarnessError

COMMANDS: Final = {
    "knee": knee.add,
    "run": knee.add_run,
    "sweep": knee.add_sweep,
    "drill": drill.add,
    "vary": vary.add,
    "locustfile": locustfile.add,
    "data": offline.add_data,
    "report": offline.add_report,
    "compare": offline.add_compare,
    "fleet": offline.add_fleet,
    "rules": offline.add_rules,
    "fit": fit.add,
    "exporter": engine.add_exporter,
    "engine": engine.add,
    "serve": serve.add_serve,
    "coldstart": serve.add_coldstart,
    "kv-scaling": serve.add_kv_scaling,
    "idle-cost": idle.add,
    "doctor": doctor.add,
}


def parser() -> Parser:
    """The whole command line; each subcommand sets `execute`.

    What was parsed has it as `top`, for commands whose work is to parse another command.
    """
    top = Parser(
        prog="vllm-harness",
        description="Finds how many concurrent requests a vLLM deployment holds within its SLOs, "
        "what limits it there, and how certain that is.",
        epilog=examples(
            "vllm-harness doctor",
            "vllm-harness knee --embedded --slo ttft_p95=500ms",
            "vllm-harness knee http://127.0.0.1:8000 --slo ttft_p95=500ms --slo itl_p95=50ms",
        ),
    )
    top.add_argument(
        "-V",
        "--version",
        action="version",
        version=f"vllm-harness {__version__}",
        help="Show the version.",
    )
    top.set_defaults(top=top)
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in COMMANDS.values():
        add(commands)
    manual = commands.add_parser("help", help="show this help, or that of a command")
    manual.add_argument("command", nargs="?", metavar="COMMAND")

    def show_help(args: argparse.Namespace) -> Any:
        words = [args.command] if args.command else []
        return top.parse_args([*words, "--help"])

    manual.set_defaults(execute=show_help)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code (docs/exit-codes.md). Ctrl-C is the caller's to tell."""
    try:
        words = sys.argv[1:] if argv is None else argv
        if not words:
            raise ConfigError(
                f"no command was given: expected one of {', '.join(COMMANDS)}; try `vllm-harness "
                "knee --embedded --slo ttft_p95=500ms`, or `vllm-harness --help`."
            )
        args = parser().parse_args(argv)
        return int(args.execute(args))
    except HarnessError as error:
        sys.stderr.write(f"vllm-harness: {error}\n")
        return error.exit_code
    except BrokenPipeError:  # for example `vllm-harness ... | head`
        # The interpreter flushes stdout at exit; into /dev/null, so that it does not fail again.
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        return 0
