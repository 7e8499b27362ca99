"""`vllm-harness engine`: serve the embedded engine, or compute its true knee offline."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from harness.cli import engine_flags
from harness.cli.parsing import count, paste
from harness.errors import EXIT_OK

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the options."""
    parser = commands.add_parser(
        "engine",
        usage="%(prog)s [OPTION ...]",
        help="serve the embedded vLLM-like engine",
        description="Serves a vLLM-like engine on this machine: continuous batching, paged KV "
        "cache, chunked prefill and prefix caching in real time, without a GPU. Ctrl-C stops it.",
        epilog=paste(
            "vllm-harness engine --port 8000",
            "vllm-harness engine --port 8000 --max-num-seqs 32 --num-gpu-blocks-override 2048",
            "vllm-harness engine --max-num-seqs 16 --true-knee --slo ttft_p95=500ms",
        ),
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS")
    parser.add_argument("--port", type=count("--port", 0), default=8000, metavar="N")
    engine_flags.declare(parser, "engine")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    wanted = engine_flags.config(args)
    from harness.engine.server import serve  # noqa: PLC0415 - heavy: see app.py

    serve(wanted, args.host, args.port, ready=lambda port: _say(args.host, port))
    return EXIT_OK


def _say(host: str, port: int) -> None:
    sys.stdout.write(f"The embedded engine listens at http://{host}:{port}; Ctrl-C stops it.\n")
    sys.stdout.flush()
