"""`vllm-harness exporter`: what vLLM's own metrics lack, and the GPUs, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.cli import groups, plain
from harness.cli.parsing import paste
from harness.errors import EXIT_OK
from harness.server.address import Address
from harness.units import SECOND

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers

ANSWER_S = 5


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
        epilog=paste(
            "vllm-harness exporter --target http://127.0.0.1:8000",
            "vllm-harness exporter --target http://127.0.0.1:8000 --server-flag max-num-seqs=256",
            "vllm-harness exporter --target http://10.0.0.7:8000 --gpu-metrics http://10.0.0.7:9401",
        ),
    )
    group = parser.add_argument_group(
        "target",
        f"The API key is read from the environment only: {' or '.join(groups.KEY_VARIABLES)}.",
    )
    group.add_argument("--target", required=True, metavar="URL", help="http://HOST:PORT")
    groups.certificate(group)
    groups.around(group)
    serving = parser.add_argument_group("serving")
    groups.listen(serving, 9400)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Serve until stopped. Raises ConfigError, ServerUnreachable."""
    from harness.export.exporter import (  # noqa: PLC0415 - heavy: see app.py
        ExporterOptions,
        run_exporter,
        to_stderr,
    )
    from harness.server.access import Access  # noqa: PLC0415 - as above

    key, source = plain.api_key()
    access = Access(
        Address.parse(args.target),
        key,
        source,
        args.ca_file,
        args.insecure,
        connect_ns=ANSWER_S * SECOND,
        answer_ns=ANSWER_S * SECOND,
    )
    flags = dict(args.server_flag)
    options = ExporterOptions(access, args.host, args.port, args.gpu_metrics, flags)
    run_exporter(options, to_stderr)
    return EXIT_OK
