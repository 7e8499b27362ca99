"""What `vllm-harness fit` is asked, and all that is known: options, config.json, a running server.

Bytes and tokens. NaN or None: not known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    from argparse import Namespace
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
    prompt_parameters: float  # that multiply a token of a prompt
    output_parameters: float  # and a token of an answer


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


@dataclass(frozen=True, slots=True)
class _Sources:
    """Where all that is known comes from."""

    args: Namespace
    published: Config  # config.json as it is
    config: Config  # the same, as quantized by --quantization
    server: Server | None
    shape: ModelShape | None


def question(args: Namespace) -> Question:
    """Gather it. Raises ConfigError, ServerUnreachable."""
    sources = _sources(args)
    server = sources.server
    limit = _limit(sources)
    context = args.context or min(DEFAULT_CONTEXT, limit or DEFAULT_CONTEXT)
    requests = tuple(args.admit or ())
    if not requests:
        requests = ((context, args.users or 1),)
    _check_lengths(limit, context, requests)
    ways = _parallel(args, server)
    gpu = GPUS[args.gpu] if args.gpu else NO_GPU
    memory = args.memory or gpu.total_bytes
    step_tokens, step_source = _step(args, server, memory)
    draft = _draft(sources, ways)
    weights = _weights(sources, ways, draft)
    dtype = _kv_cache_dtype(sources)
    layout = _layout(sources, ways, dtype, step_tokens=step_tokens, draft=draft, limit=limit)
    reserve = _reserve(args, sources.config, memory, step_tokens)
    return Question(
        requests=requests,
        users=args.users,
        context=context,
        slots=_slots(args, server),
        max_model_len=limit,
        must_hold=args.max_model_len,
        shape=sources.shape,
        layout=layout,
        kv_cache_dtype=dtype,
        parallel=ways,
        gpu=gpu,
        bandwidth=args.bandwidth or gpu.bandwidth_bytes_s,
        weights=weights,
        budget=_budget(args, memory, weights, reserve),
        reserve_source="logs" if args.reserve is None else "--reserve",
        step_tokens=step_tokens,
        step_source=step_source,
        server=server,
        division_fault=_division_fault(sources.config, ways),
    )


def _sources(args: Namespace) -> _Sources:
    published = _config(args)
    config = model_weights.quantized_by(published, args.quantization or "")
    server = _server(args) if args.url else None
    shape = model_config.model_shape(config) if config else None
    return _Sources(args, published, config, server, shape)


def _config(args: Namespace) -> Config:
    config = model_config.model_config(args.config)
    if not config and (args.config or not args.url):
        raise ConfigError(
            f"--config is {args.config or 'missing'}: expected a Hugging Face config.json that "
            "can be read, its folder, or the URL of a running server; try --config DIR."
        )
    return config


def _server(args: Namespace) -> Server:
    where = address.Address.parse(args.url)
    target = access.TargetAccess(where, *api_key(), args.ca_file, args.insecure)
    probed = probe.probe(target, "completions")
    labels = probed.cache.get("cache_config", {})
    engines = probed.cache.get("engines", 1)
    all_blocks = probed.cache.get("kv_blocks")
    return Server(
        engines=engines,
        blocks=None if all_blocks is None else all_blocks // engines,
        block_tokens=probed.cache.get("block_size"),
        kv_tokens=whole_number(labels.get("kv_cache_size_tokens")),
        concurrency=_real(labels.get("kv_cache_max_concurrency")),
        kv_cache_dtype=labels.get("cache_dtype", args.kv_cache_dtype),
        dtype=str(probed.flags.get("dtype", "")),
        max_model_len=probed.max_model_len,
        step_tokens=_count(probed.flags.get("max_num_batched_tokens")),
        slots=_count(probed.flags.get("max_num_seqs")),
    )


def _count(flag: object) -> int | None:
    return flag if isinstance(flag, int) and flag > 0 else None


def _real(text: str | None) -> float | None:
    try:
        number = float(text) if text else nan
    except ValueError:
        return None
    return number if isfinite(number) else None


def _limit(sources: _Sources) -> int | None:
    """The longest request in tokens: as asked for, else the server's or the model's own."""
    own = None
    if sources.server:
        own = sources.server.max_model_len
    if own is None and sources.shape:
        own = sources.shape.context_limit
    given = sources.args.max_model_len
    if given and own and given > own:
        raise ConfigError(
            f"--max-model-len is {given:,}, above the model's own limit of {own:,}: "
            f"expected at most that; try --max-model-len {own}."
        )
    return given or own


def _check_lengths(limit: int | None, context: int, requests: Iterable[tuple[int, int]]) -> None:
    lengths = [tokens for tokens, _ in requests]
    longest = max(context, *lengths)
    if limit and longest > limit:
        flag = "--context" if context > limit else "--admit"
        raise ConfigError(
            f"a context of {longest:,} tokens is above the limit of {limit:,}: "
            f"expected at most that; try {flag} {limit}."
        )


def _step(args: Namespace, server: Server | None, memory: float) -> tuple[int, str]:
    if args.max_num_batched_tokens:
        return args.max_num_batched_tokens, "--max-num-batched-tokens"
    if server and server.step_tokens:
        return server.step_tokens, "the server"
    return default_step_tokens(args.gpu or "", memory), "vLLM's default for this memory"


def _parallel(args: Namespace, server: Server | None) -> Parallel:
    return Parallel(
        tensor=args.tensor_parallel,
        pipeline=args.pipeline_parallel,
        decode_context=args.decode_context_parallel,
        data=max(args.data_parallel, server.engines if server else 1),
        expert=args.enable_expert_parallel,
    )


def _slots(args: Namespace, server: Server | None) -> int | None:
    if args.max_num_seqs:
        return int(args.max_num_seqs)
    return server.slots if server else None


def _kv_cache_dtype(sources: _Sources) -> str:
    """The server's, else as asked for, else the model's own."""
    server = sources.server
    shape = sources.shape
    asked = server.kv_cache_dtype if server else sources.args.kv_cache_dtype
    own = shape.kv_cache_dtype if shape else ""
    return meant_dtype(asked, own)


def _layout(
    sources: _Sources,
    ways: Parallel,
    dtype: str,
    *,
    step_tokens: int,
    draft: Draft | None,
    limit: int | None,
) -> KvLayout:
    """The KV cache, with as many batches in flight as agree best with the server's own figure."""
    server = sources.server
    block_tokens = sources.args.block_size
    if server and server.block_tokens:
        block_tokens = server.block_tokens
    if sources.shape is None:
        return _blocks_only(ways, block_tokens)
    model_bytes = model_value_bytes(server.dtype if server else "")
    draft_shape = draft.shape if draft else None
    layouts = []
    for batches in _batches(sources.args, server, ways):
        layout = kv_layout(
            sources.shape,
            dtype,
            ways,
            block_tokens=block_tokens,
            in_flight_tokens=step_tokens * batches,
            model_bytes=model_bytes,
            draft=draft_shape,
        )
        layouts.append(layout)
    return min(layouts, key=lambda layout: _distance(layout, server, limit))


def _blocks_only(ways: Parallel, block_tokens: int) -> KvLayout:
    """Blocks of so many tokens, of layers that are not known."""
    no_layers = KvGroup(window=0, token_bytes=(0,) * ways.pipeline)
    return KvLayout((no_layers,), ((0, 0),), ways, block_tokens)


def _batches(args: Namespace, server: Server | None, ways: Parallel) -> list[int]:
    """The batches in flight; of a server that does not say, first what a GPU has, then a CPU."""
    on_gpu = batches_in_flight(ways.pipeline, asynchronous=True)
    on_cpu = batches_in_flight(ways.pipeline, asynchronous=False)
    if args.no_async_scheduling:
        return [on_cpu]
    if server:
        return [on_gpu, on_cpu]
    return [on_gpu]


def _distance(layout: KvLayout, server: Server | None, limit: int | None) -> float:
    """How far a layout's requests are from the server's own figure; 0 where it has none."""
    if not (server and server.blocks and server.kv_tokens and limit):
        return 0.0
    kv_tokens = layout.concurrency(server.blocks, limit) * limit
    return abs(kv_tokens - server.kv_tokens)


def _draft(sources: _Sources, ways: Parallel) -> Draft | None:
    """What speculative decoding adds; None: not asked for. Raises ConfigError."""
    model = sources.shape
    where = sources.args.draft
    if not where or model is None:
        return None
    if str(where) == OWN_LAYERS:
        return _own_draft(model, sources.config, ways)
    config = model_config.model_config(where)
    if not config:
        raise ConfigError(
            f"--draft is {where}: expected a Hugging Face config.json that can be read, its "
            "folder, or mtp; try --draft DIR."
        )
    shape = model_config.model_shape(config)
    weights = draft_weights.draft_weights(config, sources.config, ways)
    return Draft(shape, weights)


def _own_draft(model: ModelShape, config: Config, ways: Parallel) -> Draft:
    """The model's own further layers, each like its last one. Raises ConfigError."""
    if not model.draft_layers:
        raise ConfigError(
            "--draft is mtp, and config.json has no num_nextn_predict_layers: expected a model "
            "with layers for multi-token prediction; try --draft with a draft model's folder."
        )
    windows = model.windows[-1:] * model.draft_layers
    shape = replace(model, layers=model.draft_layers, windows=windows)
    return Draft(shape, draft_weights.extra_layers_weights(config, ways))


def _weights(sources: _Sources, ways: Parallel, draft: Draft | None) -> ModelWeights:
    """The model's and the draft's; a size that is given is of both, that of files of the model."""
    args = sources.args
    config = sources.config
    # Files are of the model as published: what --quantization makes of it is computed.
    file_bytes = 0
    if config is sources.published:
        file_bytes = weight_files.stored_bytes(args.config)
    model = model_weights.model_weights(config, ways) if config else Weights()
    source = "shape"
    if file_bytes:
        model = model.from_files(file_bytes, ways)
        source = "the files there"
    parts = [model]
    if draft:
        parts.append(draft.weights)
    if args.weights:
        parts = [model.given(args.weights, ways)]
        source = "--weights"
    return ModelWeights(
        total=_sum(part.all_gpus for part in parts),
        one_gpu=_sum(part.one_gpu for part in parts),
        most_one_gpu=_sum(part.most_one_gpu for part in parts),
        source=source,
        notes=tuple(note for part in parts for note in part.notes),
        parameters=_known(model.parameters),
        active_parameters=_known(model.active_parameters),
        prompt_parameters=_known(model.prompt_parameters),
        output_parameters=_known(model.output_parameters),
    )


def _known(value: float | None) -> float:
    return nan if value is None else value


def _sum(values: Iterable[float | None]) -> float:
    return sum(map(_known, values))


def _budget(args: Namespace, memory: float, weights: ModelWeights, reserve: Reserve) -> Budget:
    return Budget(
        memory=memory,
        utilization=_utilization(args),
        weights=weights.one_gpu,
        most_weights=weights.most_one_gpu,
        reserve=reserve,
        kv_given=args.kv_memory,
    )


def _utilization(args: Namespace) -> float:
    """A reserve that is given alone is all that is neither weights nor KV cache."""
    if args.gpu_memory_utilization:
        return float(args.gpu_memory_utilization)
    return DEFAULT_UTILIZATION if args.reserve is None else 1.0


def _reserve(args: Namespace, config: Config, memory: float, step_tokens: int) -> Reserve:
    if args.reserve is not None:
        return known_reserve(args.reserve)
    slots = args.max_num_seqs or default_slots(args.gpu or "", memory)
    vocabulary = None
    if config:
        values = model_config.values_of(config)[0]
        vocabulary = values.whole("vocab_size")
    gpus = args.tensor_parallel * args.pipeline_parallel
    return expected_reserve(step_tokens, slots, vocabulary, gpus)


def _division_fault(config: Config, ways: Parallel) -> str:
    return model_weights.division_fault(config, ways) if config else ""
