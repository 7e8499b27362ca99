"""Commands that serve: `engine` and `exporter`."""

from __future__ import annotations

import argparse
import os
import sys

from harness.cli import engine_flags
from harness.cli import options_from_args as plain
from harness.cli.parsing import Subparsers, add_command
from harness.errors import EXIT_OK, ConfigError
from harness.load.request_fields import check_key
from harness.server.address import Address
from harness.study.option import declare, duration
from harness.study.option_table import CERTIFICATE, KEY_FROM, KEY_VARIABLES, SERVER
from harness.units import SECOND


def add(commands: Subparsers) -> None:
    parser = add_command(commands, "engine", execute)
    plain.listen(parser, 8000)
    parser.add_argument(
        "--served-model-name", default="", metavar="NAME", help="default: the shape's name"
    )
    engine_flags.declare(parser, "engine, with vLLM's option names")
    paced = parser.add_argument_group(
        "paced (no engine: tokens at fixed times, to check a client against)"
    )
    for flag, text in (("--first", "time to the first token"), ("--pace", "time between tokens")):
        paced.add_argument(flag, type=duration(flag, "20ms"), default=0, metavar="TIME", help=text)


def execute(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    wanted = engine_flags.engine_config(args)
    if bool(args.first) != bool(args.pace):
        raise ConfigError("--first and --pace belong together; try --first 100ms --pace 20ms.")
    from harness.engine.server import ServingOptions, serve  # noqa: PLC0415 - heavy: see app.py

    variable = KEY_VARIABLES[0]
    key = os.environ.get(variable, "")
    check_key(key, variable)
    serving = ServingOptions(args.served_model_name, key, args.first, args.pace)
    serve(wanted, args.host, args.port, serving=serving, ready=lambda port: _say(args.host, port))
    return EXIT_OK


def _say(host: str, port: int) -> None:
    sys.stdout.write(f"The embedded server listens at http://{host}:{port}; Ctrl-C stops it.\n")
    sys.stdout.flush()


TARGET_TIMEOUT_S = 5


def add_exporter(commands: Subparsers) -> None:
    parser = add_command(commands, "exporter", _exporter)
    group = parser.add_argument_group("target", KEY_FROM)
    group.add_argument("--target", required=True, metavar="URL", help="http://HOST:PORT")
    declare(group, (*CERTIFICATE, *SERVER))
    plain.listen(parser.add_argument_group("serving"), 9400)


def _exporter(args: argparse.Namespace) -> int:
    """Serve until stopped. Raises ConfigError, ServerUnreachable."""
    from harness.export import exporter_service as service  # noqa: PLC0415 - heavy: see app.py
    from harness.server.access import TargetAccess  # noqa: PLC0415 - as above

    key, source = plain.api_key()
    limit_ns = TARGET_TIMEOUT_S * SECOND
    access = TargetAccess(
        Address.parse(args.target), key, source, args.ca_file, args.insecure, limit_ns, limit_ns
    )
    flags = dict(args.server_flag)
    service.run_exporter(access, args.host, args.port, args.gpu_metrics, flags)
    return EXIT_OK
