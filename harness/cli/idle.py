"""`vllm-harness idle-cost`: what idle sessions cost a running server."""

from __future__ import annotations

from harness.cli.parsing import Subparsers, add_command
from harness.core.value_parsers import duration
from harness.run.option import Option, declare, number_option
from harness.run.option_table import CERTIFICATE, OUTPUT


def add(commands: Subparsers) -> None:
    parser = add_command(commands, "idle-cost", "harness.cli.idle_work:idle_cost")
    parser.add_argument("url", metavar="URL", help="Load this server: http://HOST:PORT.")
    options = (
        number_option("--sessions", "Let N sessions go idle.", 8),
        number_option("--history-tokens", "Give each session N tokens before it goes idle.", 2048),
        number_option("--message-tokens", "Send N tokens in the next message.", 32),
        number_option("--output-tokens", "Ask for N tokens in each answer.", 8),
        Option(
            "--idle",
            "Wait this long before the first comes back.",
            duration("--idle", "10s"),
            "TIME",
            "10s",
        ),
        Option("--model", "Ask for this model. Default: the server's only model.", str, "NAME"),
        *CERTIFICATE,
        OUTPUT[0],
    )
    declare(parser, options)
