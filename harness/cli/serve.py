"""`vllm-harness serve`: run a vLLM from here, with a preset, until Ctrl-C."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.cli import options_from_args as plain
from harness.cli.parsing import examples
from harness.errors import EXIT_OK, ServerUnreachable
from harness.study.option_table import START, Option, declare, number_option

if TYPE_CHECKING:
    import argparse

    from harness.cli.parsing import Subparsers

# name -> flag, value, why
PRESETS: Final[dict[str, tuple[tuple[str, str, str], ...]]] = {
    "interactive": (
        ("--max-num-batched-tokens", "2048", "short steps: a long prompt delays each token little"),
        ("--max-num-seqs", "128", "a smaller batch takes less time per step"),
        ("--enable-chunked-prefill", "", "running answers go on while a prompt is read"),
        ("--enable-prefix-caching", "", "each turn of a conversation begins with the last ones"),
        ("--max-model-len", "16384", "room for a long conversation"),
        ("--gpu-memory-utilization", "0.90", "a margin for what else uses the GPU"),
    ),
    "throughput": (
        ("--max-num-batched-tokens", "16384", "few, large steps: less overhead per token"),
        ("--max-num-seqs", "1024", "as many requests in a step as the KV cache holds"),
        ("--enable-chunked-prefill", "", "prompts fill what decoding leaves of a step"),
        ("--enable-prefix-caching", "", "shared instructions are computed once"),
        ("--max-model-len", "8192", "more requests at once fit into the KV cache"),
        ("--gpu-memory-utilization", "0.95", "more KV cache, so more requests at once"),
    ),
}  # fmt: skip


def add(commands: Subparsers) -> None:
    """Declare the options."""
    rows = "\n".join(
        f"  {name:<12}{flag} {value}".ljust(50) + why
        for name, preset in PRESETS.items()
        for flag, value, why in preset
    )
    parser = commands.add_parser(
        "serve",
        usage="%(prog)s --model-dir DIR [OPTION ...]",
        help="start a vLLM with a preset, and end it with Ctrl-C",
        description="Starts `vllm serve` on the loopback, waits until it is ready, and says its "
        "version, its KV cache and where the time of the start went. Ctrl-C ends it and all of its "
        "processes.",
        epilog=examples(
            "vllm-harness serve --preset interactive --model-dir models/qwen2.5-1.5b",
            "vllm-harness serve --model-dir DIR --vllm PATH --start-args '--max-num-seqs 8'",
        ),
    )
    group = parser.add_argument_group("server", f"Presets; --start-args override them:\n{rows}")
    preset = Option("--preset", "default: vLLM's own settings", choices=tuple(PRESETS))
    log = Option("--log", "where vLLM's log goes", Path, "FILE", "vllm.log")
    port = number_option("--port", "0: any free port", 8000, min_value=0, example=8000)
    declare(group, (preset, *START, port, log))
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM. Raises ConfigError, ServerUnreachable."""
    import psutil  # noqa: PLC0415 - heavy: see app.py

    from harness.server.vllm_start import model_context, started  # noqa: PLC0415 - as above

    options, flags = plain.start_options(args), []
    own = model_context(options.model_dir) if options.model_dir else None
    for flag, value, why in PRESETS.get(args.preset, ()):
        over = flag == "--max-model-len" and own is not None and own < int(value)
        flags += [flag, str(own) if over else value][: 1 + bool(value)]
        sys.stdout.write(f"{flag} {flags[-1]:<8} {'the model has no more' if over else why}\n")
    sys.stdout.write(f"starting vLLM; its log is {args.log}\n")
    sys.stdout.flush()
    # what the user gives comes last and counts
    options = replace(options, start_args=(*flags, *options.start_args))
    with suppress(KeyboardInterrupt), started(options, log=args.log, port=args.port) as at:
        log = at.start_log
        lines = [
            *at.notes,
            f"vLLM {log.version} at {at.url} after {at.wall_s:.1f} s; Ctrl-C ends it",
        ]
        lines += [f"{seconds:8.1f} s  {phase}" for phase, seconds in log.phases_s.items()]
        if log.kv_tokens:
            lines.append(f"KV cache: {log.kv_tokens:,.0f} tokens")
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
        psutil.Process(at.pid).wait()
        raise ServerUnreachable(f"vLLM ended by itself: expected Ctrl-C; see {args.log}.")
    return EXIT_OK
