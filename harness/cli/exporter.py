"""`vllm-harness exporter`: what vLLM's own metrics lack, and the GPUs, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.cli import options_from_args as plain
from harness.cli.parsing import examples
from harness.errors import EXIT_OK
from harness.server.address import Address
from harness.study.option import declare
from harness.study.option_table import CERTIFICATE, KEY_FROM, SERVER
from harness.units import SECOND

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers

TARGET_TIMEOUT_S = 5


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "exporter",
        usage="%(prog)s --target URL [OPTION ...]",
        help="serve GPU readings and what vLLM's own metrics lack, for Prometheus",
        description="Reads a vLLM and its GPUs once a second and serves at /metrics what "
        "dashboards need beside vLLM's own figures: where TTFT goes, KV tokens free, slots left, "
        "GPUs (docs/exporter.md). A target that does not answer is reported as "
        "harness_target_up 0. SIGTERM ends it with exit code 0.",
        epilog=examples(
            "vllm-harness exporter --target http://127.0.0.1:8000",
            "vllm-harness exporter --target http://127.0.0.1:8000 --server-flag max-num-seqs=256",
            "vllm-harness exporter --target http://10.0.0.7:8000 --gpu-metrics http://10.0.0.7:9401",
        ),
    )
    group = parser.add_argument_group("target", KEY_FROM)
    group.add_argument("--target", required=True, metavar="URL", help="http://HOST:PORT")
    declare(group, (*CERTIFICATE, *SERVER))
    plain.listen(parser.add_argument_group("serving"), 9400)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Serve until stopped. Raises ConfigError, ServerUnreachable."""
    from harness.export.exporter_service import (  # noqa: PLC0415 - heavy: see app.py
        ExporterOptions,
        print_to_stderr,
        run_exporter,
    )
    from harness.server.access import TargetAccess  # noqa: PLC0415 - as above

    key, source = plain.api_key()
    access = TargetAccess(
        Address.parse(args.target),
        key,
        source,
        args.ca_file,
        args.insecure,
        connect_ns=TARGET_TIMEOUT_S * SECOND,
        answer_ns=TARGET_TIMEOUT_S * SECOND,
    )
    flags = dict(args.server_flag)
    options = ExporterOptions(access, args.host, args.port, args.gpu_metrics, flags)
    run_exporter(options, print_to_stderr)
    return EXIT_OK
