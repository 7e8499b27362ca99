"""Commands that serve: `engine`, the simulated vLLM, and `exporter`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from harness.engine.server import ServingOptions, serve
from harness.errors import EXIT_OK, ConfigError
from harness.export.exporter_service import run_exporter
from harness.load.request_fields import check_key
from harness.run import engine_flags
from harness.run import options_from_args as plain
from harness.run.option_table import KEY_VARIABLES
from harness.server.access import TargetAccess
from harness.server.address import Address
from harness.units import SECOND

if TYPE_CHECKING:
    import argparse

TARGET_TIMEOUT_S: Final = 5


def engine(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    wanted = engine_flags.engine_config(args)
    if bool(args.first) != bool(args.pace):
        raise ConfigError("--first and --pace belong together; try --first 100ms --pace 20ms.")
    variable = KEY_VARIABLES[0]
    key = os.environ.get(variable, "")
    check_key(key, variable)
    serving = ServingOptions(args.served_model_name, key, args.first, args.pace)
    serve(wanted, args.host, args.port, serving=serving, ready=lambda port: _say(args.host, port))
    return EXIT_OK


def _say(host: str, port: int) -> None:
    sys.stdout.write(f"The embedded server listens at http://{host}:{port}; Ctrl-C stops it.\n")
    sys.stdout.flush()


def exporter(args: argparse.Namespace) -> int:
    """Serve until stopped. Raises ConfigError, ServerUnreachable."""
    key, source = plain.api_key()
    limit_ns = TARGET_TIMEOUT_S * SECOND
    access = TargetAccess(
        Address.parse(args.target), key, source, args.ca_file, args.insecure, limit_ns, limit_ns
    )
    flags = dict(args.server_flag)
    run_exporter(access, args.host, args.port, args.gpu_metrics, flags)
    return EXIT_OK
