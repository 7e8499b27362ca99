"""The command `vllm-harness`: pick a subcommand, run it, turn its end into an exit code.

Nothing heavy is imported here or by the subcommands' parsers (a test watches): each `execute`
imports what it calls, so that `--help` and a refused option answer at once.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from harness import __version__
from harness.cli import compare, doctor, engine, exporter, knee, report, rules, run, sweep
from harness.cli.parsing import Parser, paste
from harness.drive.leaving import leave
from harness.errors import EXIT_INTERRUPTED, HarnessError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS: Final = (knee, run, sweep, report, compare, rules, exporter, engine, doctor)


def parser() -> Parser:
    """The whole command line; each subcommand sets `execute`."""
    top = Parser(
        prog="vllm-harness",
        description="Finds how many concurrent requests a vLLM deployment holds, what stops it "
        "there, and how sure that is.",
        epilog=paste(
            "vllm-harness doctor",
            "vllm-harness knee --embedded --slo ttft_p95=500ms --budget 90s",
            "vllm-harness knee http://127.0.0.1:8000 --slo ttft_p95=500ms --slo itl_p95=50ms",
        ),
    )
    top.add_argument("-V", "--version", action="version", version=f"vllm-harness {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    manual = commands.add_parser("help", help="show this page, or the page of a command")
    manual.add_argument("command", nargs="?", metavar="COMMAND")
    manual.set_defaults(
        execute=lambda args: top.parse_args([args.command, "--help"] if args.command else ["-h"])
    )
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code (docs/exit-codes.md)."""
    try:
        args = parser().parse_args(argv)
        return int(args.execute(args))
    except HarnessError as error:
        sys.stderr.write(f"vllm-harness: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("vllm-harness: interrupted\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `vllm-harness ... | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def command() -> NoReturn:
    """The process's: ended without taking apart what it has imported."""
    leave(main())
