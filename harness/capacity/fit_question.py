"""What `vllm-harness fit` is asked, and all that is known: options, config.json, a running server.

Bytes and tokens. NaN or None: not known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import isfinite, nan
from typing import TYPE_CHECKING, Final

from harness.errors import ConfigError
from harness.memory.budget import Budget
from harness.memory.cards import (
    GPUS,
    GpuSpec,
    batches_in_flight,
    default_slots,
    default_step_tokens,
)
from harness.memory.kv_dtypes import meant_dtype, model_value_bytes
from harness.memory.kv_layout import KvGroup, KvLayout, kv_layout
from harness.memory.parallel import Parallel
from harness.memory.reserve import (
    DEFAULT_UTILIZATION,
    Reserve,
    expected_reserve,
    known_reserve,
)
from harness.memory.weights import Weights
from harness.run.options_from_args import api_key
from harness.server import (
    access,
    address,
    draft_weights,
    model_config,
    model_weights,
    probe,
    weight_files,
)
from harness.wire.kv_cache import whole_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from harness.memory.model_shape import ModelShape
    from harness.server.config_values import Config

DEFAULT_CONTEXT: Final = 4096
OWN_LAYERS: Final = "mtp"  # of --draft
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
    slots: int | None


@dataclass(frozen=True, slots=True)
class Draft:
    """What speculative decoding adds to a model."""

    shape: ModelShape
    weights: Weights


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """Bytes of all GPUs, and of the one that has most."""

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
    division_fault: str  # why vLLM does not divide the weights like that; "": it does


def question(args: argparse.Namespace) -> Question:
    """Gather it. Raises ConfigError, ServerUnreachable."""
    published = _config(args)
    config = model_weights.quantized_by(published, args.quantization or "")
    server = _server(args) if args.url else None
    shape = model_config.model_shape(config) if config else None
    limit = _limit(args, server, shape)
    context = args.context or min(DEFAULT_CONTEXT, limit or DEFAULT_CONTEXT)
    requests = tuple(args.admit or [(context, args.users or 1)])
    _check_lengths(limit, context, requests)
    ways = _parallel(args, server)
    gpu = GPUS[args.gpu] if args.gpu else NO_GPU
    memory = args.memory or gpu.total_bytes
    step, step_source = _step(args, server, memory)
    draft = _draft(args, config, ways) if args.draft and shape else None
    files = weight_files.stored_bytes(args.config) if config is published else 0
    weights = _weights(args, config, ways, draft, files)
    dtype = meant_dtype(
        server.kv_cache_dtype if server else args.kv_cache_dtype,
        shape.kv_cache_dtype if shape else "",
    )
    layout = _blocks_only(args, server, ways)
    if shape:
        laid_out = partial(
            kv_layout,
            shape,
            dtype,
            ways,
            block_tokens=layout.block_tokens,
            model_bytes=model_value_bytes(server.dtype if server else ""),
            draft=draft.shape if draft else None,
        )
        likely = [laid_out(in_flight_tokens=step * n) for n in _batches(args, server, ways)]
        layout = min(likely, key=lambda one: _distance(one, server, limit))
    return Question(
        requests=requests,
        users=args.users,
        context=context,
        slots=args.max_num_seqs or (server.slots if server else None),
        max_model_len=limit,
        must_hold=args.max_model_len,
        shape=shape,
        layout=layout,
        kv_cache_dtype=dtype,
        parallel=ways,
        gpu=gpu,
        bandwidth=args.bandwidth or gpu.bandwidth_bytes_s,
        weights=weights,
        budget=Budget(
            memory,
            _utilization(args),
            weights.one_gpu,
            weights.most_one_gpu,
            _reserve(args, config, memory, step),
            args.kv_memory,
        ),
        reserve_source="logs" if args.reserve is None else "--reserve",
        step_tokens=step,
        step_source=step_source,
        server=server,
        division_fault=model_weights.division_fault(config, ways) if config else "",
    )


def _config(args: argparse.Namespace) -> Config:
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
    return Server(
        engines=engines,
        blocks=None if blocks is None else blocks // engines,
        block_tokens=found.cache.get("block_size"),
        kv_tokens=whole_number(labels.get("kv_cache_size_tokens")),
        concurrency=_real(labels.get("kv_cache_max_concurrency")),
        kv_cache_dtype=labels.get("cache_dtype", args.kv_cache_dtype),
        dtype=str(found.flags.get("dtype", "")),
        max_model_len=found.max_model_len,
        step_tokens=_count(found.flags.get("max_num_batched_tokens")),
        slots=_count(found.flags.get("max_num_seqs")),
    )


def _count(flag: object) -> int | None:
    return flag if isinstance(flag, int) and flag > 0 else None


def _real(text: str | None) -> float | None:
    try:
        number = float(text) if text else nan
    except ValueError:
        return None
    return number if isfinite(number) else None


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


def _check_lengths(limit: int | None, context: int, requests: Iterable[tuple[int, int]]) -> None:
    longest = max(tokens for tokens, _ in requests)
    if limit and max(context, longest) > limit:
        flag = "--context" if context > limit else "--admit"
        raise ConfigError(
            f"a context of {max(context, longest):,} tokens is above the limit of {limit:,}: "
            f"expected at most that; try {flag} {limit}."
        )


def _step(args: argparse.Namespace, server: Server | None, memory: float) -> tuple[int, str]:
    if args.max_num_batched_tokens:
        return args.max_num_batched_tokens, "--max-num-batched-tokens"
    if server and server.step_tokens:
        return server.step_tokens, "the server"
    return default_step_tokens(args.gpu or "", memory), "vLLM's default for this memory"


def _parallel(args: argparse.Namespace, server: Server | None) -> Parallel:
    return Parallel(
        tensor=args.tensor_parallel,
        pipeline=args.pipeline_parallel,
        decode_context=args.decode_context_parallel,
        data=max(args.data_parallel, server.engines if server else 1),
        expert=args.enable_expert_parallel,
    )


def _batches(args: argparse.Namespace, server: Server | None, ways: Parallel) -> list[int]:
    """The batches in flight; of a server that does not say, first what a GPU has, then a CPU."""
    ahead, settled = (batches_in_flight(ways.pipeline, ahead) for ahead in (True, False))
    if args.no_async_scheduling:
        return [settled]
    return [ahead, settled] if server else [ahead]


def _distance(layout: KvLayout, server: Server | None, limit: int | None) -> float:
    """How far a layout's requests are from the server's own figure; 0 where it has none."""
    if not (server and server.blocks and server.kv_tokens and limit):
        return 0.0
    return abs(layout.concurrency(server.blocks, limit) * limit - server.kv_tokens)


def _blocks_only(args: argparse.Namespace, server: Server | None, ways: Parallel) -> KvLayout:
    """Blocks of so many tokens, of layers that are not known."""
    block_tokens = (server and server.block_tokens) or args.block_size
    no_layers = KvGroup(window=0, token_bytes=(0,) * ways.pipeline)
    return KvLayout((no_layers,), ((0, 0),), ways, block_tokens)


def _draft(args: argparse.Namespace, config: Config, ways: Parallel) -> Draft:
    """What speculative decoding adds. Raises ConfigError."""
    model = model_config.model_shape(config)
    if str(args.draft) == OWN_LAYERS:
        if not model.draft_layers:
            raise ConfigError(
                "--draft is mtp, and config.json has no num_nextn_predict_layers: expected a model "
                "with layers for multi-token prediction; try --draft with a draft model's folder."
            )
        last = model.windows[-1:] * model.draft_layers
        shape = replace(model, layers=model.draft_layers, windows=last)
        return Draft(shape, draft_weights.extra_layers_weights(config, ways))
    found = model_config.model_config(args.draft)
    if not found:
        raise ConfigError(
            f"--draft is {args.draft}: expected a Hugging Face config.json that can be read, its "
            "folder, or mtp; try --draft DIR."
        )
    return Draft(model_config.model_shape(found), draft_weights.draft_weights(found, config, ways))


def _weights(
    args: argparse.Namespace, config: Config, ways: Parallel, draft: Draft | None, files: int
) -> ModelWeights:
    """The model's and the draft's; a size that is given is of both, that of files of the model."""
    found = model_weights.model_weights(config, ways) if config else Weights()
    source = "shape"
    if files:
        found, source = found.from_files(files, ways), "the files there"
    parts = [found, draft.weights] if draft else [found]
    if args.weights:
        parts, source = [found.given(args.weights, ways)], "--weights"
    return ModelWeights(
        total=_sum(part.all_gpus for part in parts),
        one_gpu=_sum(part.one_gpu for part in parts),
        most_one_gpu=_sum(part.most_one_gpu for part in parts),
        source=source,
        notes=tuple(note for part in parts for note in part.notes),
        parameters=_known(found.parameters),
        active_parameters=_known(found.active_parameters),
    )


def _known(value: float | None) -> float:
    return nan if value is None else value


def _sum(values: Iterable[float | None]) -> float:
    return sum(map(_known, values))


def _utilization(args: argparse.Namespace) -> float:
    """A reserve that is given alone is all that is neither weights nor KV cache."""
    if args.gpu_memory_utilization:
        return float(args.gpu_memory_utilization)
    return DEFAULT_UTILIZATION if args.reserve is None else 1.0


def _reserve(args: argparse.Namespace, config: Config, memory: float, step: int) -> Reserve:
    if args.reserve is not None:
        return known_reserve(args.reserve)
    slots = args.max_num_seqs or default_slots(args.gpu or "", memory)
    vocabulary = model_config.values_of(config)[0].whole("vocab_size") if config else None
    gpus = args.tensor_parallel * args.pipeline_parallel
    return expected_reserve(step, slots, vocabulary, gpus)
