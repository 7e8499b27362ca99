"""`vllm-harness idle-cost`: what idle sessions cost a running server."""

from __future__ import annotations

from harness.cli.parsing import Subparsers, add_command
from harness.core.value_parsers import duration
from harness.run.option import Option, declare, number_option
from harness.run.option_table import CERTIFICATE, OUTPUT


def add(commands: Subparsers) -> None:
    parser = add_command(commands, "idle-cost", "harness.cli.idle_work:idle_cost")
    parser.add_argument("url", metavar="URL", help="Server: http://HOST:PORT.")
    options = (
        number_option("--sessions", "Sessions that go idle.", 8),
        number_option("--history-tokens", "Tokens of each session when it goes idle.", 2048),
        number_option("--message-tokens", "Tokens of the next message.", 32),
        number_option("--output-tokens", "Tokens of each answer.", 8),
        Option(
            "--idle", "Pause before the first comes back.", duration("--idle", "10s"), "TIME", "10s"
        ),
        Option("--model", "Model name. Default: the server's only model.", str, "NAME"),
        *CERTIFICATE,
        OUTPUT[0],
    )
    declare(parser, options)
