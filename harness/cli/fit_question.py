"""What `vllm-harness fit` is asked, and all that is known: options, config.json, a running server.

Bytes and tokens. NaN or None: not known.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any, Final

from harness.cli.options_from_args import api_key
from harness.errors import ConfigError
from harness.measure.memory.budget import Budget
from harness.measure.memory.cards import (
    GPUS,
    GpuSpec,
    batches_in_flight,
    default_slots,
    default_step_tokens,
)
from harness.measure.memory.kv_dtypes import meant_dtype, model_value_bytes
from harness.measure.memory.kv_layout import KvGroup, KvLayout, kv_layout
from harness.measure.memory.model_shape import ModelShape
from harness.measure.memory.parallel import Parallel
from harness.measure.memory.reserve import DEFAULT_UTILIZATION, expected_reserve, known_reserve
from harness.server import access, address, model_config, probe

DEFAULT_CONTEXT: Final = 4096
NO_GPU: Final = GpuSpec(nan, nan, nan, "unknown", nan)


@dataclass(frozen=True, slots=True)
class Server:
    """What a running server says of one of its engines."""

    engines: int
    blocks: int | None
    block_tokens: int | None
    kv_tokens: int | None  # vLLM's own figure
    concurrency: float | None  # the same, in requests of its longest context
    kv_cache_dtype: str
    dtype: str  # "": not shown
    max_model_len: int | None
    step_tokens: int | None
    asynchronous: bool


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """Of all GPUs, and of the one that has most."""

    total: float
    one_gpu: float
    most_one_gpu: float
    source: str
    notes: tuple[str, ...]
    parameters: float
    active_parameters: float


@dataclass(frozen=True, slots=True)
class Question:
    """All that decides the answer."""

    requests: tuple[tuple[int, int], ...]  # tokens of each, and how many
    users: int | None
    context: int
    slots: int | None
    max_model_len: int | None
    must_hold: int | None  # tokens of a request without room for which vLLM does not start
    shape: ModelShape | None
    layout: KvLayout
    kv_cache_dtype: str
    parallel: Parallel
    gpu: GpuSpec
    bandwidth: float
    weights: ModelWeights
    budget: Budget
    reserve_source: str
    step_tokens: int
    step_source: str
    server: Server | None


def question(args: argparse.Namespace) -> Question:
    """Gather it. Raises ConfigError, ServerUnreachable."""
    config = _config(args)
    server = _server(args) if args.url else None
    shape = model_config.model_shape(config) if config else None
    limit = _limit(args, server, shape)
    context = args.context or min(DEFAULT_CONTEXT, limit or DEFAULT_CONTEXT)
    requests = tuple(args.admit or [(context, args.users or 1)])
    _check_lengths(limit, (context, *(tokens for tokens, _ in requests)))
    parallel = Parallel(
        tensor=args.tensor_parallel,
        pipeline=args.pipeline_parallel,
        decode_context=args.decode_context_parallel,
        data=max(args.data_parallel, server.engines if server else 1),
        expert=args.enable_expert_parallel,
    )
    gpu = GPUS[args.gpu] if args.gpu else NO_GPU
    memory = args.memory or gpu.total_bytes
    step, step_source = _step(args, server, memory)
    dtype = meant_dtype(
        server.kv_cache_dtype if server else args.kv_cache_dtype,
        shape.kv_cache_dtype if shape else "",
    )
    weights = _weights(args, config, shape, parallel)
    return Question(
        requests=requests,
        users=args.users,
        context=context,
        slots=args.max_num_seqs,
        max_model_len=limit,
        must_hold=args.max_model_len,
        shape=shape,
        layout=_layout(args, shape, dtype, parallel, step, server),
        kv_cache_dtype=dtype,
        parallel=parallel,
        gpu=gpu,
        bandwidth=args.bandwidth or gpu.bandwidth_bytes_s,
        weights=weights,
        budget=_budget(args, memory, step, config, weights, parallel),
        reserve_source="--reserve" if args.reserve is not None else "logs",
        step_tokens=step,
        step_source=step_source,
        server=server,
    )


def _config(args: argparse.Namespace) -> dict[str, Any]:
    config = model_config.model_config(args.config)
    if not config and (args.config or not args.url):
        raise ConfigError(
            f"--config is {args.config or 'missing'}: expected a Hugging Face config.json that "
            "can be read, its folder, or the URL of a running server; try --config DIR."
        )
    return config


def _server(args: argparse.Namespace) -> Server:
    where = (address.Address.parse(args.url), *api_key(), args.ca_file, args.insecure)
    found = probe.probe(access.TargetAccess(*where), "completions")
    labels = found.cache.get("cache_config", {})
    engines = found.cache.get("engines", 1)
    blocks = found.cache.get("kv_blocks")
    step = found.flags.get("max_num_batched_tokens")
    return Server(
        engines=engines,
        blocks=None if blocks is None else blocks // engines,
        block_tokens=found.cache.get("block_size"),
        kv_tokens=_whole(labels.get("kv_cache_size_tokens")),
        concurrency=_real(labels.get("kv_cache_max_concurrency")),
        kv_cache_dtype=labels.get("cache_dtype", args.kv_cache_dtype),
        dtype=str(found.flags.get("dtype", "")),
        max_model_len=found.max_model_len,
        step_tokens=step if isinstance(step, int) else None,
        asynchronous="cpu" not in found.version,
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() else None


def _real(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _limit(args: argparse.Namespace, server: Server | None, shape: ModelShape | None) -> int | None:
    own = server.max_model_len if server else None
    if own is None and shape:
        own = shape.context_limit
    if args.max_model_len and own and args.max_model_len > own:
        raise ConfigError(
            f"--max-model-len is {args.max_model_len:,}, above the model's own limit of {own:,}: "
            f"expected at most that; try --max-model-len {own}."
        )
    return args.max_model_len or own


def _check_lengths(limit: int | None, lengths: tuple[int, ...]) -> None:
    if limit and max(lengths) > limit:
        raise ConfigError(
            f"a context of {max(lengths):,} tokens is above the limit of {limit:,}: expected at "
            f"most that; try --context {limit}."
        )


def _step(args: argparse.Namespace, server: Server | None, memory: float) -> tuple[int, str]:
    if args.max_num_batched_tokens:
        return args.max_num_batched_tokens, "--max-num-batched-tokens"
    if server and server.step_tokens:
        return server.step_tokens, "the server"
    return default_step_tokens(args.gpu or "", memory), "vLLM's default for this memory"


def _layout(
    args: argparse.Namespace,
    shape: ModelShape | None,
    dtype: str,
    parallel: Parallel,
    step: int,
    server: Server | None,
) -> KvLayout:
    """The KV cache; without a shape, blocks of a size that is not known."""
    asynchronous = not args.no_async_scheduling and (server is None or server.asynchronous)
    in_flight = step * batches_in_flight(parallel.pipeline, asynchronous)
    block = (server and server.block_tokens) or args.block_size
    if shape is None:
        return KvLayout((KvGroup(0, (0,) * parallel.pipeline),), ((0, 0),), parallel, block)
    value = model_value_bytes(server.dtype if server else "")
    return kv_layout(shape, dtype, parallel, block, in_flight, value)


def _weights(
    args: argparse.Namespace,
    config: dict[str, Any],
    shape: ModelShape | None,
    parallel: Parallel,
) -> ModelWeights:
    parameters, active, computed = model_config.model_weights(config) if shape else (nan,) * 3
    stored = _stored_bytes(args.config)
    total = args.weights or stored or computed
    source = "--weights" if args.weights else "the files there" if stored else "shape"
    one = total / parallel.engine_gpus
    return ModelWeights(total, one, one, source, (), parameters, active)


def _stored_bytes(path: Path | None) -> int:
    """The size of weight files beside a config.json; 0: there are none."""
    if path is None:
        return 0
    folder = path if path.is_dir() else path.parent
    return sum(file.stat().st_size for file in folder.glob("model*.safetensors"))


def _budget(
    args: argparse.Namespace,
    memory: float,
    step: int,
    config: dict[str, Any],
    weights: ModelWeights,
    parallel: Parallel,
) -> Budget:
    """A reserve that is given alone is all that is neither weights nor KV cache."""
    utilization = args.gpu_memory_utilization
    if args.reserve is None:
        slots = args.max_num_seqs or default_slots(args.gpu or "", memory)
        vocabulary = model_config.values_of(config)[0].whole("vocab_size") if config else None
        reserve = expected_reserve(step, slots, vocabulary, parallel.engine_gpus)
        utilization = utilization or DEFAULT_UTILIZATION
    else:
        reserve = known_reserve(args.reserve)
        utilization = utilization or 1.0
    return Budget(
        memory, utilization, weights.one_gpu, weights.most_one_gpu, reserve, args.kv_memory
    )
