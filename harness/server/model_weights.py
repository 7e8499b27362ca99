"""The weights of a model by its config.json: every matrix that vLLM loads, or what is not known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from harness.errors import ConfigError
from harness.memory.weight_parts import (
    Attention,
    Experts,
    FeedForward,
    LatentAttention,
    norms,
    vector,
)
from harness.memory.weight_shards import undivided
from harness.memory.weights import (
    ONE_GPU,
    VOCABULARY_STEP,
    Kind,
    Matrix,
    Shard,
    WeightPlan,
    Weights,
    loaded_weights,
    round_up,
)
from harness.server.config_values import Config, ConfigValues
from harness.server.model_config import model_shape, values_of
from harness.server.quantization_config import quantization_of
from harness.server.vision_towers import add_towers

if TYPE_CHECKING:
    from harness.memory.families import Family
    from harness.memory.model_shape import ModelShape
    from harness.memory.parallel import Parallel
    from harness.memory.quantization import Quantization

INNER: Final = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
EXPERT_COUNTS: Final = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
EXPERT_INNER: Final = ("moe_intermediate_size", *INNER)
SHARED: Final = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
SHARED_INNER: Final = ("shared_expert_intermediate_size", "shared_intermediate_size")
CHOSEN: Final = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k")
# in the order of LatentAttention's fields
LATENT_SIZES: Final = (
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
    "q_lora_rank",
)
BIAS: Final = ("attention_bias", "qkv_bias", "use_qkv_bias", "use_bias")
GPT2_INNER: Final = 4  # times the hidden size, where n_inner is null
GIVE_WEIGHTS: Final = "try --weights with their GB, of all GPUs."


def model_weights(config: Config, parallel: Parallel = ONE_GPU) -> Weights:
    """Return what the weights take; None for what cannot be told, and notes with the reason.

    Raises ConfigError for a family that is not known, or a field that makes no sense.
    """
    try:
        plan = weight_plan(config)
    except UnknownWeightsError as error:
        return Weights(notes=(str(error),))
    return loaded_weights(plan, parallel)


def division_fault(config: Config, parallel: Parallel) -> str:
    """Return why vLLM refuses to divide these quantized weights so; empty: it does not, or unknown.

    Raises ConfigError like `model_weights`.
    """
    try:
        plan = weight_plan(config)
    except UnknownWeightsError:
        return ""
    fault = undivided(plan, parallel)
    if fault is None:
        return ""
    sentence = fault.sentence(plan.quantization.method)
    remedies = []
    fitting = []
    for tensor in range(1, parallel.tensor):
        fewer = replace(parallel, tensor=tensor)
        if parallel.tensor % tensor == 0 and undivided(plan, fewer) is None:
            fitting.append(tensor)
    if fitting:
        remedies.append(f"--tensor-parallel {fitting[-1]}")
    if undivided(plan, replace(parallel, expert=True)) is None:
        remedies.append("--enable-expert-parallel")
    if not remedies:
        return f"{sentence}."
    return f"{sentence}; try {' or '.join(remedies)}."


def quantized_by(config: Config, method: str) -> Config:
    """Return the configuration as vLLM's `--quantization` has it: of a model that is in 16 bit."""
    if not method or ConfigValues(config).part("quantization_config").fields:
        return config
    return {**config, "quantization_config": {"quant_method": method}}


class UnknownWeightsError(ConfigError):
    """The layers are known, but not all of what their weights take."""


def weight_plan(config: Config) -> WeightPlan:
    """Return every matrix. Raises UnknownWeightsError, and ConfigError like `model_shape`."""
    shape = model_shape(config)
    values, family = values_of(config)
    quantization = quantization_of(values.part("quantization_config"))
    if quantization.unknown:
        raise UnknownWeightsError(
            f"The weights are unknown ({quantization.unknown}): {GIVE_WEIGHTS}"
        )
    layers = _layers(values, family, shape)
    tied = values.flag("tie_word_embeddings")
    embeddings, head = _vocabulary(values, family, shape, quantization)
    last = [vector("norm", shape.hidden, count=1 + family.norm_bias)]
    if not tied:
        last.append(head)
    plan = WeightPlan(
        layers=layers,
        embeddings=embeddings,
        last=tuple(last),
        tied=tied,
        tables=_rotary_tables(values, family, shape),
        quantization=quantization,
        chosen_share=_chosen_share(values),
    )
    return add_towers(plan, ConfigValues(config), shape)


def _layers(
    values: ConfigValues, family: Family, shape: ModelShape
) -> tuple[tuple[Matrix, ...], ...]:
    """Return the matrices of each layer. Raises UnknownWeightsError."""
    attention = _attention(values, family, shape)
    sparse = [False] * shape.layers
    if _experts(values):
        sparse = [_is_sparse(values, layer) for layer in range(shape.layers)]
    feed_forward = {}
    for kind in set(sparse):
        feed_forward[kind] = _feed_forward(values, family, shape, kind)
    return tuple((*attention, *feed_forward[kind]) for kind in sparse)


def _attention(values: ConfigValues, family: Family, shape: ModelShape) -> list[Matrix]:
    before = norms(shape.hidden, family.norms, family.norm_bias)
    if shape.latent_size:
        return [*before, *_latent_attention(values, shape).matrices()]
    query_bias = family.query_bias
    output_bias = family.output_bias
    own_bias = any(values.flag(name) for name in BIAS)
    if query_bias is None:
        query_bias = own_bias
    if output_bias is None:
        output_bias = own_bias
    attention = Attention(
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        query_bias=query_bias,
        output_bias=output_bias,
        head_norms=family.head_norms,
        sinks=shape.family == "gpt_oss",
    )
    return [*before, *attention.matrices()]


def _latent_attention(values: ConfigValues, shape: ModelShape) -> LatentAttention:
    sizes = [values.whole(name) or 0 for name in LATENT_SIZES]
    return LatentAttention(shape.hidden, shape.heads, *sizes)


def _experts(values: ConfigValues) -> int:
    return values.whole(*EXPERT_COUNTS) or 0


def _is_sparse(values: ConfigValues, layer: int) -> bool:
    """Whether a layer of a model with experts has them."""
    kinds = values.words("mlp_layer_types")
    if layer < len(kinds):
        return kinds[layer] == "sparse"
    if layer < (values.whole("first_k_dense_replace") or 0):
        return False
    if layer in values.wholes("mlp_only_layers"):
        return False
    step = values.whole("decoder_sparse_step") or 1
    every = values.whole("moe_layer_freq") or 1
    return (layer + 1) % step == 0 and layer % every == 0


def _feed_forward(
    values: ConfigValues, family: Family, shape: ModelShape, sparse: bool
) -> list[Matrix]:
    """Return that part of a layer with experts, or without. Raises UnknownWeightsError."""
    experts = _experts(values)
    says_how_many = any(map(values.has, EXPERT_COUNTS))
    if family.experts and not experts and not says_how_many:
        raise _lacks(shape, EXPERT_COUNTS[:3])
    bias = values.flag("mlp_bias") or values.flag("use_bias")
    if family.mlp_bias is not None:
        bias = family.mlp_bias
    if not sparse:
        inner = _dense_size(values, family, shape)
        return FeedForward(shape.hidden, inner, family.gated, bias).matrices()
    inner = _needed(values, shape, EXPERT_INNER)
    matrices = Experts(shape.hidden, inner, experts, bias).matrices()
    shared = values.whole(*SHARED_INNER)
    if not shared:
        shared = inner * (values.whole(*SHARED) or 0)
    if shared:
        matrices += FeedForward(shape.hidden, shared, module="mlp.shared_experts").matrices()
    return matrices


def _dense_size(values: ConfigValues, family: Family, shape: ModelShape) -> int:
    """Return the inner size of a layer without experts, be it what experts would share."""
    shared = values.whole("shared_intermediate_size")
    if shared and family.experts and not _experts(values):
        return shared
    if shape.family == "gpt2":
        return values.whole(*INNER) or GPT2_INNER * shape.hidden
    return _needed(values, shape, INNER)


def _needed(values: ConfigValues, shape: ModelShape, names: tuple[str, ...]) -> int:
    """Return a size by the first of its names. Raises UnknownWeightsError where there is none."""
    size = values.whole(*names)
    if not size:
        raise _lacks(shape, names[:1])
    return size


def _lacks(shape: ModelShape, fields: tuple[str, ...]) -> UnknownWeightsError:
    return UnknownWeightsError(
        f"The weights are unknown: config.json, of model_type {shape.family!r}, lacks "
        f"{' or '.join(fields)}; add it, or {GIVE_WEIGHTS}"
    )


def _vocabulary(
    values: ConfigValues, family: Family, shape: ModelShape, quantization: Quantization
) -> tuple[tuple[Matrix, ...], Matrix]:
    """Return embeddings and head, in 16 bit unless the file says so. Raises UnknownWeightsError."""
    words = values.whole("vocab_size", least=1)
    if words is None:
        raise _lacks(shape, ("vocab_size",))
    padded = round_up(words, VOCABULARY_STEP)
    width = values.whole("word_embed_proj_dim") or shape.hidden
    table = Matrix("model.embed_tokens", width, padded, Shard.OUTPUTS, kind=Kind.HALF)
    embeddings = [table]
    if width != shape.hidden:
        projections = Matrix("model.project", width, shape.hidden, count=2, kind=Kind.HALF)
        embeddings.append(projections)
    if family.positions is not None:
        learned = (shape.context_limit or 0) + family.positions
        embeddings.append(vector("model.embed_positions", shape.hidden, count=learned))
    kind = Kind.LINEAR if quantization.head else Kind.HALF
    head = Matrix("lm_head", width, padded, Shard.OUTPUTS, kind=kind)
    return tuple(embeddings), head


def _rotary_tables(values: ConfigValues, family: Family, shape: ModelShape) -> tuple[Matrix, ...]:
    """Return sines and cosines of every position, as each GPU has them."""
    if family.positions is not None or not shape.context_limit:
        return ()
    turned = shape.head_size
    if shape.latent_size:
        turned = values.whole("qk_rope_head_dim") or 0
    share = values.real("partial_rotary_factor")
    if share is not None:
        turned = int(turned * min(share, 1.0))
    table = Matrix("rotary", turned, shape.context_limit, count=family.tables, kind=Kind.TABLE)
    return (table,)


def _chosen_share(values: ConfigValues) -> float:
    """Return the share of experts that a token goes through; all where it is not said."""
    experts = _experts(values)
    chosen = values.whole(*CHOSEN) or experts
    if not experts:
        return 1.0
    return min(chosen / experts, 1.0)
