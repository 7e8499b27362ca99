"""Commands that serve: `engine`, which may also compute its true knee offline, and `exporter`."""

from __future__ import annotations

import argparse
import os
import sys
from math import exp
from typing import TYPE_CHECKING

from harness.cli import engine_flags
from harness.cli import options_from_args as plain
from harness.cli.parsing import Subparsers, add_command
from harness.errors import EXIT_OK, EXIT_SLO_MISSED, ConfigError
from harness.load.request_fields import check_key
from harness.server.address import Address
from harness.study.option import Option, declare, duration
from harness.study.option_table import (
    CERTIFICATE,
    KEY_FROM,
    KEY_VARIABLES,
    LENGTHS,
    SERVER,
    SLO,
    USER_RANGE,
)
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig


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
    offline = plain.with_workloads(parser, "true knee (simulated, nothing is served)")
    switch = Option("--true-knee", "compute the most users that meet the SLOs", None)
    declare(offline, (*LENGTHS, switch, SLO, *USER_RANGE))


def execute(args: argparse.Namespace) -> int:
    """Serve until interrupted, or print the true knee."""
    wanted = engine_flags.engine_config(args)
    if args.true_knee:
        return _true_knee(args, wanted)
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


def _true_knee(args: argparse.Namespace, config: EngineConfig) -> int:
    """From long simulated runs; 99 when even --min-users breaks an SLO."""
    if not args.slo:
        raise ConfigError("--true-knee has no --slo: expected one; try --slo ttft_p95=500ms.")
    from harness.simulator.closed_loop import Traffic  # noqa: PLC0415 - heavy: see app.py
    from harness.simulator.reference_knee import true_knee  # noqa: PLC0415

    sent = args.workload.sized(args.prompt_tokens, args.output_tokens)
    traffic = Traffic(sent.prompt.mean, sent.output.mean, sent.output.cv, config.max_model_len)
    truth = true_knee(config, traffic, args.slo, min_users=args.min_users, max_users=args.max_users)
    promises = " and ".join(str(slo) for slo in args.slo)
    lines = [
        f"True knee: {truth.users} users within {promises}.",
        "users  worst quantile / limit",
        *(f"{users:5}  {exp(z):.3f}" for users, z in sorted(truth.levels.items())),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return EXIT_OK if truth.users else EXIT_SLO_MISSED


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
