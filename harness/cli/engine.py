"""Commands that serve: `engine` and `exporter`."""

from __future__ import annotations

from harness.cli.parsing import Subparsers, add_command
from harness.core.value_parsers import duration
from harness.run import engine_flags
from harness.run import options_from_args as plain
from harness.run.option import declare
from harness.run.option_table import CERTIFICATE, KEY_FROM, SERVER


def add(commands: Subparsers) -> None:
    parser = add_command(commands, "engine", "harness.cli.engine_work:engine")
    plain.listen(parser, 8000)
    parser.add_argument(
        "--served-model-name",
        default="",
        metavar="NAME",
        help="Name the model. Default: the shape's.",
    )
    engine_flags.declare(parser, "engine, with vLLM's option names")
    paced = parser.add_argument_group(
        "paced (no engine: tokens at fixed times, to check a client against)"
    )
    for flag, text in (
        ("--first", "Send the first token after this time."),
        ("--pace", "Pause between tokens."),
    ):
        paced.add_argument(flag, type=duration(flag, "20ms"), default=0, metavar="TIME", help=text)


def add_exporter(commands: Subparsers) -> None:
    parser = add_command(commands, "exporter", "harness.cli.engine_work:exporter")
    group = parser.add_argument_group("target", KEY_FROM)
    group.add_argument(
        "--target", required=True, metavar="URL", help="Read this server: http://HOST:PORT."
    )
    declare(group, (*CERTIFICATE, *SERVER))
    plain.listen(parser.add_argument_group("serving"), 9400)
