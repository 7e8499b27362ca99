"""Commands that start vLLM themselves: `serve`, `coldstart`, `kv-scaling`."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psutil

from harness.core.typed_json import to_json
from harness.errors import EXIT_OK, ServerUnreachable
from harness.lifecycle.cold_start import RUN_COLUMNS, drop_caches, measure_cold_start, run_rows
from harness.lifecycle.deployments import disaggregated, launches, serving
from harness.lifecycle.kv_scaling import COLUMNS, measure_lengths
from harness.lifecycle.serve_presets import DISAGGREGATED, PRESETS
from harness.lifecycle.vllm_start import launched, started
from harness.records.json_files import dumps
from harness.records.redact import redact
from harness.report.templates import render
from harness.report.write import as_csv
from harness.run import options_from_args as plain
from harness.server.address import LOOPBACK, check_port
from harness.server.model_config import context_limit, model_config

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from harness.lifecycle.vllm_start import StartOptions


def serve(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM. Raises ConfigError, ServerUnreachable."""
    options = plain.start_options(args)
    model_limit = context_limit(model_config(options.model_dir))
    flags = _preset_flags(args.preset, model_limit)
    options = replace(options, start_args=(*flags, *options.start_args))  # the last one counts
    if args.preset == DISAGGREGATED:
        return _serve_disaggregated(args, options)
    _tell(f"starting vLLM; its log is {args.log}")
    with suppress(KeyboardInterrupt), started(options, log=args.log, port=args.port) as server:
        log = server.start_log
        phases = [f"{seconds:8.1f} s  {phase}" for phase, seconds in log.phases_s.items()]
        room = f"KV cache: {log.kv_tokens or 0:,.0f} tokens"
        address = f"vLLM {log.version} serves at {server.url}; Ctrl-C ends it."
        lines = (*server.notes, *phases, room, address)
        _tell("\n".join(lines))
        psutil.Process(server.pid).wait()
        raise ServerUnreachable(f"vLLM ended by itself: expected Ctrl-C; see {args.log}.")
    return EXIT_OK


def _serve_disaggregated(args: argparse.Namespace, options: StartOptions) -> int:
    """Servers of both roles and the proxy before them, until Ctrl-C or SIGTERM."""
    if args.port:
        check_port("--port", LOOPBACK, args.port)
    deployment = disaggregated(options, args.prefill_gpus, args.decode_gpus, args.connector)
    wanted = launches(deployment, (), args.log)
    _tell(f"starting {len(wanted)} servers; their logs are {args.log.stem}-1{args.log.suffix}, ...")
    with suppress(KeyboardInterrupt), launched(wanted) as begun:
        servers = [server.ready() for server in begun]
        with serving(deployment, servers, args.port) as endpoint:
            for place, server in zip(deployment.places, servers, strict=True):
                kv_tokens = server.start_log.kv_tokens or 0
                _tell(f"{place.role} on GPU {place.gpus}: {server.url}, {kv_tokens:,.0f} KV tokens")
            measure = " ".join(["vllm-harness knee", endpoint.url, *endpoint.options])
            _tell(f"vLLM serves at {endpoint.url}; Ctrl-C ends it. To measure it: {measure}")
            psutil.wait_procs([psutil.Process(server.pid) for server in servers], callback=_ended)
    return EXIT_OK


def _ended(process: psutil.Process) -> None:
    raise ServerUnreachable(
        f"a server of process {process.pid} ended by itself: expected Ctrl-C; see its log."
    )


def _preset_flags(preset: str | None, model_limit: int | None) -> list[str]:
    """The flags of a preset; each is said with its reason."""
    flags = []
    for flag, value, why in PRESETS.get(preset or "", ()):
        if flag == "--max-model-len" and model_limit is not None and model_limit < int(value):
            flags += [flag, str(model_limit)]
            _tell(f"{flag} {model_limit}: the model has no more")
        else:
            words = [flag, value] if value else [flag]
            flags += words
            _tell(f"{' '.join(words)}: {why}")
    return flags


def coldstart(args: argparse.Namespace) -> int:
    options = plain.start_options(args)
    key, _ = plain.api_key()
    folder = _new_folder(args, "coldstart")
    tokens = (args.prompt_tokens, args.output_tokens)
    starts: list[dict[str, Any]] = []
    for caches in _caches_of_starts(args, options):
        log = folder / f"vllm-{len(starts) + 1}.log"
        _tell(f"starting vLLM; its log is {log}")
        measured = measure_cold_start(options, log, key, tokens)
        starts.append(to_json({**measured, "caches": caches}))
        result = {**starts[0], "pre_warmed": starts[1:]}
        written = dumps(redact(result), indent=True)
        (folder / "coldstart.json").write_bytes(written)
    rows = run_rows(starts[0])
    (folder / "first_token_latency.csv").write_text(as_csv(rows, RUN_COLUMNS))
    page = render("first_token_latency.md.j2", starts=starts, rows=rows)
    (folder / "first_token_latency.md").write_text(page)
    _tell(f"{page}\n{folder}/first_token_latency.md")
    return EXIT_OK


def _caches_of_starts(args: argparse.Namespace, options: StartOptions) -> Iterator[str]:
    """What the page cache holds at each start, in words; drops it before the first if asked to."""
    if not args.drop_caches:
        yield "as it was"
        return
    yield drop_caches(options.model_dir) if options.model_dir else "as it was"
    yield "as the start before left it"


def kv_scaling(args: argparse.Namespace) -> int:
    options = plain.start_options(args)
    folder = _new_folder(args, "kv-scaling")
    model_limit = context_limit(model_config(options.model_dir))
    page = ""
    _tell(f"starting vLLM with each length; its logs are in {folder}")
    for rows in measure_lengths(options, args.lengths, folder):
        (folder / "kv_cache_scaling.csv").write_text(as_csv(rows, COLUMNS))
        page = render("kv_cache_scaling_notes.md.j2", rows=rows, own=model_limit)
        (folder / "kv_cache_scaling_notes.md").write_text(page)
        _tell(_length_text(rows[-1]))
    _tell(f"{page}\n{folder}/kv_cache_scaling_notes.md")
    return EXIT_OK


def _length_text(row: Mapping[str, Any]) -> str:
    """`--max-model-len 512: 131,072 KV tokens (no GPU: its columns are empty)`."""
    tokens = f"{row['kv_tokens']:,.0f} KV tokens" if row["kv_tokens"] else "not measured"
    notes = f" ({row['notes']})" if row["notes"] else ""
    return f"--max-model-len {row['max_model_len']}: {tokens}{notes}"


def _new_folder(args: argparse.Namespace, command: str) -> Path:
    folder = plain.folder_of(args.out, command)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
