"""Commands that start vLLM themselves: `serve`, `coldstart`, `kv-scaling`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from harness.cli import options_from_args as plain
from harness.cli.parsing import Subparsers, add_command
from harness.errors import EXIT_OK, ServerUnreachable
from harness.runfolder.redact import redact
from harness.study.option import Option, declare, level_list, number_option
from harness.study.option_table import OUTPUT, START

# name -> flag, value, why. The figures are of one H200 and a 1.5B model: docs/h200.md.
PRESETS: Final[dict[str, tuple[tuple[str, str, str], ...]]] = {
    "interactive": (
        ("--max-num-batched-tokens", "2048", "short steps: at 64 users p95 ITL was 25 ms, not 88"),
        ("--max-num-seqs", "128", "a smaller batch takes less time per step"),
        ("--enable-chunked-prefill", "", "what steps this short need: p99 ITL 32 ms, not 38"),
        ("--enable-prefix-caching", "", "with 84% shared, a first token came in 20 ms, not 34"),
        ("--max-model-len", "16384", "room for a long conversation"),
        ("--gpu-memory-utilization", "0.90", "a margin for what else uses the GPU"),
        ("--api-server-count", "2", "one was the limit from about 100 users on"),
    ),
    "throughput": (
        ("--max-num-batched-tokens", "16384", "large steps: 17% more tokens/s at 64 users"),
        ("--max-num-seqs", "1024", "as many requests in a step as the KV cache holds"),
        ("--enable-chunked-prefill", "", "prompts fill what decoding leaves (no gain shown)"),
        ("--enable-prefix-caching", "", "with 84% shared, 18% more tokens/s"),
        ("--max-model-len", "8192", "more requests at once fit into the KV cache"),
        ("--gpu-memory-utilization", "0.95", "more KV cache, so more requests at once"),
        ("--api-server-count", "4", "70% more tokens/s at 256 users than with one"),
    ),
}  # fmt: skip


def add_serve(commands: Subparsers) -> None:
    declare(add_command(commands, "serve", _serve), (
        *START,
        Option("--preset", "default: vLLM's own settings", choices=tuple(PRESETS)),
        number_option("--port", "0: any free port", 8000, min_value=0, example=8000),
        Option("--log", "where vLLM's log goes", Path, "FILE", "vllm.log"),
    ))  # fmt: skip


def add_coldstart(commands: Subparsers) -> None:
    declare(add_command(commands, "coldstart", _coldstart), (
        *START,
        Option("--drop-caches", "first empty the page cache; then start again with it warm", None),
        number_option("--prompt-tokens", "", 512), number_option("--output-tokens", "", 32),
        OUTPUT[0],
    ))  # fmt: skip


def add_kv_scaling(commands: Subparsers) -> None:
    declare(add_command(commands, "kv-scaling", _kv_scaling), (
        *START,
        Option("--lengths", "tokens", level_list("--lengths"), "N,N,...", "512,1024,2048,4096"),
        OUTPUT[0],
    ))  # fmt: skip


def _serve(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM. Raises ConfigError, ServerUnreachable."""
    import psutil  # noqa: PLC0415 - heavy: see app.py

    from harness.server.model_config import context_limit, model_config  # noqa: PLC0415 - as above
    from harness.server.vllm_start import started  # noqa: PLC0415 - as above

    options, flags = plain.start_options(args), []
    own = context_limit(model_config(options.model_dir))
    for flag, value, why in PRESETS.get(args.preset, ()):
        over = flag == "--max-model-len" and own is not None and own < int(value)
        flags += [flag, str(own)] if over else [flag, value][: 1 + bool(value)]
        _tell(f"{flag} {own if over else value}: {'the model has no more' if over else why}")
    options = replace(options, start_args=(*flags, *options.start_args))  # the last one counts
    _tell(f"starting vLLM; its log is {args.log}")
    with suppress(KeyboardInterrupt), started(options, log=args.log, port=args.port) as server:
        log = server.start_log
        phases = [f"{seconds:8.1f} s  {phase}" for phase, seconds in log.phases_s.items()]
        room = f"KV cache: {log.kv_tokens or 0:,.0f} tokens"
        address = f"vLLM {log.version} serves at {server.url}; Ctrl-C ends it."
        _tell("\n".join((*server.notes, *phases, room, address)))
        psutil.Process(server.pid).wait()
        raise ServerUnreachable(f"vLLM ended by itself: expected Ctrl-C; see {args.log}.")
    return EXIT_OK


def _coldstart(args: argparse.Namespace) -> int:
    from harness.measure.typed_json import to_json  # noqa: PLC0415 - heavy: see app.py
    from harness.report.templates import render  # noqa: PLC0415 - heavy: see app.py
    from harness.report.write import as_csv  # noqa: PLC0415 - as above
    from harness.runfolder.json_files import dumps  # noqa: PLC0415 - as above
    from harness.study.cold_start import (  # noqa: PLC0415 - as above
        RUN_COLUMNS,
        drop_caches,
        measure_cold_start,
        run_rows,
    )

    options, starts = plain.start_options(args), []
    key = plain.api_key()[0]
    folder = _new_folder(args, "coldstart")
    for number in range(1 + args.drop_caches):
        caches = "as the start before left it" if number else "as it was"
        if args.drop_caches and not number and options.model_dir:
            caches = drop_caches(options.model_dir)
        _tell(f"starting vLLM; its log is {folder}/vllm-{number + 1}.log")
        log, tokens = folder / f"vllm-{number + 1}.log", (args.prompt_tokens, args.output_tokens)
        starts.append(to_json({**measure_cold_start(options, log, key, tokens), "caches": caches}))
        found = {**starts[0], "pre_warmed": starts[1:]}
        (folder / "coldstart.json").write_bytes(dumps(redact(found), indent=True))
    rows = run_rows(starts[0])
    (folder / "first_token_latency.csv").write_text(as_csv(rows, RUN_COLUMNS))
    page = render("first_token_latency.md.j2", starts=starts, rows=rows)
    (folder / "first_token_latency.md").write_text(page)
    _tell(f"{page}\n{folder}/first_token_latency.md")
    return EXIT_OK


def _kv_scaling(args: argparse.Namespace) -> int:
    from harness.report.templates import render  # noqa: PLC0415 - heavy: see app.py
    from harness.report.write import as_csv  # noqa: PLC0415 - as above
    from harness.server.model_config import context_limit, model_config  # noqa: PLC0415 - as above
    from harness.study import kv_scaling  # noqa: PLC0415 - as above

    options, folder = plain.start_options(args), _new_folder(args, "kv-scaling")
    own, page = context_limit(model_config(options.model_dir)), ""
    _tell(f"starting vLLM with each length; its logs are in {folder}")
    for rows in kv_scaling.measure_lengths(options, args.lengths, folder):
        (folder / "kv_cache_scaling.csv").write_text(as_csv(rows, kv_scaling.COLUMNS))
        page = render("kv_cache_scaling_notes.md.j2", rows=rows, own=own)
        (folder / "kv_cache_scaling_notes.md").write_text(page)
        _tell(_length_text(rows[-1]))
    _tell(f"{page}\n{folder}/kv_cache_scaling_notes.md")
    return EXIT_OK


def _length_text(row: Mapping[str, Any]) -> str:
    """`--max-model-len 512: 131,072 KV tokens (no GPU: its columns are empty)`."""
    found = f"{row['kv_tokens']:,.0f} KV tokens" if row["kv_tokens"] else "not measured"
    notes = f" ({row['notes']})" if row["notes"] else ""
    return f"--max-model-len {row['max_model_len']}: {found}{notes}"


def _new_folder(args: argparse.Namespace, command: str) -> Path:
    folder = plain.folder_of(args.out, command)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
