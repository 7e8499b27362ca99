"""`vllm-harness fit`: what fits on GPUs, by arithmetic, from a config.json or a running server."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from typing import Any

from harness.cli.options_from_args import api_key
from harness.cli.parsing import Subparsers, add_command
from harness.engine.shapes import GPUS, GpuSpec
from harness.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_SLO_MISSED, ConfigError
from harness.measure.memory_fit import KvLayout, compute_tokens_per_s, decode_tokens_per_s
from harness.study.option import Option, declare, number_option, positive_number, whole_number
from harness.study.option_table import CERTIFICATE, JSON


def _gb(flag: str, text: str) -> Option:
    read = positive_number(flag)
    return Option(flag, text, lambda word: 0.0 if word == "0" else read(word) * 1e9, "GB")


def _requests(text: str) -> list[tuple[int, int]]:
    """Parse `4096x40,16384`: the tokens of each request, and how many there are."""
    one, pairs = whole_number("--admit", 1, 4096), [part.partition("x") for part in text.split(",")]
    return [(one(tokens), one(times if by else "1")) for tokens, by, times in pairs]


def add(commands: Subparsers) -> None:
    parser = add_command(commands, "fit", execute)
    parser.add_argument("url", nargs="?", metavar="URL", help="a running server: its KV cache")
    declare(parser, (
        Option("--config", "a Hugging Face config.json, or its folder", Path, "FILE"),
        Option("--gpu", ", ".join(GPUS), str, "NAME", choices=tuple(GPUS)),
        number_option("--tensor-parallel", "GPUs that share a replica", 1),
        number_option("--gpus", "that many as replicas, or fewer replicas that share GPUs?"),
        number_option("--context", "of each user, prompt and answer", 4096, metavar="TOKENS"),
        number_option("--users", "do so many fit, and which context can each have?"),
        Option("--admit", "do these fit at once? 4096x40,16384", _requests, "TOKENSxN,..."),
        _gb("--weights", "of all GPUs; default: the files beside --config, or computed"),
        _gb("--memory", "of each GPU; default: by its data sheet"),
        _gb("--bandwidth", "of each GPU's memory, in GB/s; the same"),
        _gb("--reserve", "of each GPU, for neither weights nor KV cache; default: 8%% and 2 GB"),
        _gb("--kv-memory", "of each GPU, for the KV cache; default: what is left"),
        Option("--kv-cache-dtype", "", str, None, "auto", choices=(
            "auto", "bfloat16", "float16", "float32", "fp8", "fp8_e4m3", "fp8_e5m2")),
        number_option("--block-size", "tokens per KV block", 16),
        number_option("--max-num-batched-tokens", "of a step: sliding layers keep them, too", 1),
        number_option("--max-num-seqs", "requests that vLLM runs at once: its slots"),
        *CERTIFICATE, JSON,
    ))  # fmt: skip


def execute(args: argparse.Namespace) -> int:
    """Compute, say it, write it. Raises ConfigError, ServerUnreachable."""
    from harness.cli.start import write_json  # noqa: PLC0415 - as above
    from harness.report.templates import render  # noqa: PLC0415 - heavy: see app.py

    if args.gpus and not args.config:
        raise ConfigError(
            "--gpus is given without --config: expected a model's shape to split; try --config DIR."
        )
    facts = _facts(args)
    shared = [n for n in (1 << i for i in range(6)) if args.gpus and args.gpus % n == 0]
    facts["splits"] = [_split(args, n) for n in shared]
    page = render("fit.txt.j2", args=args, **facts)
    (sys.stderr if args.json == "-" else sys.stdout).write(page)
    if args.json:
        write_json(args.json, facts)
    return {True: EXIT_OK, False: EXIT_SLO_MISSED, None: EXIT_INCONCLUSIVE}[facts["fits"]]


def _split(args: argparse.Namespace, gpus: int) -> dict[str, Any]:
    """What `--gpus` hold as replicas of so many GPUs each."""
    alike = {"url": None, "tensor_parallel": gpus, "admit": None}  # whatever a server has now
    one = _facts(argparse.Namespace(**vars(args) | alike))
    n, user = args.gpus // gpus, one["user"]
    return {
        "replicas": n, "gpus": gpus, "users": n * user["users"],
        "weight_bytes": n * one["weight_bytes"], "alone": one["decode_tokens_per_s"],
        "tokens_per_s": n * user["users"] * user["tokens_per_s_per_user"],
    }  # fmt: skip


def _asked(args: argparse.Namespace, limit: int | None) -> list[tuple[int, int]]:
    asked: list[tuple[int, int]] = args.admit or [(args.context, args.users or 1)]
    if limit and (longest := max(args.context, *(tokens for tokens, _ in asked))) > limit:
        raise ConfigError(
            f"a context of {longest:,} tokens is above the limit of {limit:,}: expected at most "
            f"that; try --context {limit}."
        )
    return asked


def _facts(args: argparse.Namespace) -> dict[str, Any]:
    """All figures, of the replica as a whole; NaN or None: not known."""
    from harness.server import access, address, model_config, probe  # noqa: PLC0415 - as above

    path, config = args.config, model_config.model_config(args.config)
    if not config and (path or not args.url):
        raise ConfigError(
            f"--config is {path or 'missing'}: expected a Hugging Face config.json that can be "
            "read, its folder, or the URL of a running server; try --config DIR."
        )
    files = (path if path.is_dir() else path.parent).glob("model*.safetensors") if path else ()
    stored = sum(file.stat().st_size for file in files)
    cache, limit = dict[str, Any](), model_config.context_limit(config)
    if args.url:
        where = (address.Address.parse(args.url), *api_key(), args.ca_file, args.insecure)
        found = probe.probe(access.TargetAccess(*where), "completions")
        cache, limit = dict(found.cache), found.max_model_len or limit
    asked = _asked(args, limit)
    n, block = args.tensor_parallel, cache.get("block_size") or args.block_size
    dtype = cache.get("cache_config", {}).get("cache_dtype", args.kv_cache_dtype)
    value = model_config.kv_value_bytes(config, {"kv_cache_dtype": dtype})
    layout, (parameters, active, computed) = KvLayout(0, {0: 1}, block), (nan,) * 3
    if config:
        layout = model_config.kv_layout(config, value, n, block)
        parameters, active, computed = model_config.model_weights(config)
    layout = replace(layout, step_tokens=args.max_num_batched_tokens)
    weights = args.weights or stored or computed
    gpu = GPUS.get(args.gpu, GpuSpec(nan, nan, nan, "unknown"))
    memory = n * (args.memory or gpu.memory_bytes)
    bandwidth = n * (args.bandwidth or gpu.bandwidth_bytes_s)
    left = 0.08 * memory / n + 2e9 if args.reserve is None else args.reserve
    pool = n * args.kv_memory if args.kv_memory else memory - weights - n * left
    if blocks := cache.get("kv_blocks"):  # of layers in groups, only the configuration tells
        said = "" if config else cache["cache_config"].get("kv_cache_size_tokens", "")
        blocks = int(said) // block if said.isdecimal() else blocks // cache["engines"]
        pool = blocks * layout.block_bytes if config else nan
    elif config and not isnan(pool):
        blocks = max(int(pool // layout.block_bytes), 0)
    reserve, requests = memory - weights - pool, sum(times for _, times in asked)
    need = sum(times * layout.request_blocks(tokens) for tokens, times in asked)
    faster = 2 if config.get("quantization_config") else 1  # matrix products in 8 bit
    compute = compute_tokens_per_s(n * gpu.flops_s * faster, active)
    read = weights if isnan(active) else weights * active / parameters

    def row(tokens: int, users: int = 0) -> dict[str, Any]:
        users = users or layout.users_in(blocks or 0, tokens, args.max_num_seqs)
        moved = decode_tokens_per_s(bandwidth, read, users * layout.read_bytes(tokens))
        size, speed = layout.request_blocks(tokens) * layout.block_bytes, compute / max(users, 1)
        return {"context_tokens": tokens, "users": users, "kv_bytes_per_user": size,
                "tokens_per_s_per_user": min(moved, speed)}  # fmt: skip

    most, slots = need if blocks is None else blocks, args.max_num_seqs or requests
    full = pool < 0 or reserve < 0 or need > most or requests > slots
    unknown = blocks is None and (args.admit or args.users) and not full
    contexts = {args.context} | {1024 << i for i in range(8) if 1024 << i <= (limit or 1 << 17)}
    return {
        "fits": None if unknown else not full, "requests": requests, "need_blocks": need,
        "request_tokens": sum(tokens * times for tokens, times in asked), "kv_blocks": blocks,
        "gpus": n, "gpu": gpu.source, "memory_bytes": memory, "reserve_bytes": reserve,
        "weights_from": "--weights" if args.weights else "the files there" if stored else "shape",
        "weight_bytes": weights, "kv_pool_bytes": pool, "kv_value_bytes": value,
        "kv_bytes_per_token": layout.read_bytes(1), "layers_by_window": layout.layers_by_window,
        "block_tokens": block, "block_bytes": layout.block_bytes, "max_model_len": limit,
        "kv_tokens": (blocks or 0) * max(contexts) // layout.request_blocks(max(contexts)),
        "context_in_blocks": layout.context_in(blocks or 0, args.users or 1),
        "user": row(args.context), "envelope": [*map(row, sorted(contexts))],
        "prefill_tokens_per_s": compute, "decode_tokens_per_s": row(0, 1)["tokens_per_s_per_user"],
    }  # fmt: skip
