"""What each family of models (`model_type`) has that its config.json may leave out.

The values are those of Transformers 5's configuration classes and of vLLM 0.32's models. A family
that is not here is refused: layers of an unknown kind would make any figure wrong by factors.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# Which layers have the sliding window where no `layer_types` says: none, all, or those from
# `max_window_layers` on (only with `use_sliding_window`); n: all but each n-th.
NO_LAYER: Final = 0
ALL_LAYERS: Final = 1
LATE_LAYERS: Final = -1


@dataclass(frozen=True, slots=True)
class Family:
    """What holds for all models of one `model_type`."""

    slides: int = NO_LAYER
    always: Mapping[str, Any] = field(default_factory=dict)  # for fields that a file leaves out
    within: Mapping[str, Any] = field(default_factory=dict)  # the same, in a multimodal file only
    experts: bool = False  # the file has to name their number
    latent: bool = False  # attention over one compressed vector of a token
    gated: bool = True  # a feed-forward layer has three matrices, not two
    query_bias: bool | None = None  # and of keys and values; None: by the file's own field
    output_bias: bool | None = None
    mlp_bias: bool | None = None
    norms: int = 2  # vectors of hidden_size in a layer
    norm_bias: bool = False
    head_norms: bool = False  # one of queries and one of keys, of head_dim
    positions: int | None = None  # learned, so many more than max_position_embeddings
    tables: int = 1  # of rotary positions; of images, vLLM keeps four times the positions


def _size(hidden: int, layers: int, heads: int, inner: int, vocabulary: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
    }


def _with(family: Family, **always: Any) -> Family:
    return replace(family, always={**family.always, **always})


LLAMA_SIZE: Final = _size(4096, 32, 32, 11_008, 32_000) | {"max_position_embeddings": 2048}
MISTRAL_SIZE: Final = _size(4096, 32, 32, 14_336, 32_000) | {"max_position_embeddings": 131_072}
QWEN2_SIZE: Final = _size(4096, 32, 32, 22_016, 151_936) | {"max_position_embeddings": 32_768}
QWEN2_VL_SIZE: Final = _size(8192, 80, 64, 29_568, 152_064) | {"max_position_embeddings": 32_768}
QWEN3_VL_SIZE: Final = _size(4096, 32, 32, 22_016, 151_936) | {"max_position_embeddings": 128_000}
QWEN3_VL_MOE_SIZE: Final = _size(2048, 24, 16, 5632, 151_936) | {"max_position_embeddings": 128_000}
GEMMA_SIZE: Final = _size(3072, 28, 16, 24_576, 256_000)
GEMMA2_SIZE: Final = _size(2304, 26, 8, 9216, 256_000)
GEMMA3_SIZE: Final = _size(2304, 26, 8, 9216, 262_208)
LATE: Final = {"sliding_window": 4096, "max_window_layers": 28}

LLAMA: Final = Family(within=LLAMA_SIZE)
MISTRAL: Final = Family(
    ALL_LAYERS,
    {"num_key_value_heads": 8, "sliding_window": 4096},
    MISTRAL_SIZE,
    query_bias=False,
    output_bias=False,
)
MIXTRAL: Final = replace(MISTRAL, always={"num_key_value_heads": 8}, experts=True)
QWEN2: Final = Family(LATE_LAYERS, LATE, QWEN2_SIZE, query_bias=True, output_bias=False)
QWEN2_VL: Final = replace(QWEN2, within=QWEN2_VL_SIZE, tables=4)
QWEN3: Final = Family(LATE_LAYERS, {**LATE, "head_dim": 128}, QWEN2_SIZE, head_norms=True)
QWEN3_MOE: Final = Family(within=QWEN2_SIZE, experts=True, head_norms=True)
QWEN3_VL: Final = Family(
    NO_LAYER, {"head_dim": 128, "num_key_value_heads": 32}, QWEN3_VL_SIZE, head_norms=True, tables=4
)
GEMMA: Final = Family(NO_LAYER, {"head_dim": 256, "tie_word_embeddings": True}, GEMMA_SIZE)
GEMMA2: Final = Family(
    2,
    {
        "head_dim": 256,
        "tie_word_embeddings": True,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "max_position_embeddings": 8192,
    },
    GEMMA2_SIZE,
    norms=4,
)
# Published Gemma 3 files leave out whatever is the class's own value: heads of 4B, the vocabulary
# of all but 1B.
GEMMA3: Final = Family(
    6,
    {
        "head_dim": 256,
        "tie_word_embeddings": True,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262_208,
        "sliding_window": 4096,
        "max_position_embeddings": 131_072,
    },
    GEMMA3_SIZE,
    norms=4,
    head_norms=True,
    tables=2,
)
GPT_OSS: Final = Family(
    2,
    {"head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128},
    experts=True,
    query_bias=True,
    output_bias=True,
    mlp_bias=True,
)
DEEPSEEK: Final = Family(experts=True, latent=True)
COHERE: Final = Family(always={"tie_word_embeddings": True}, norms=1)
GLM4: Final = Family(
    always={"head_dim": 128, "num_key_value_heads": 2, "attention_bias": True},
    output_bias=False,
    norms=4,
)
OPT: Final = Family(
    always={"tie_word_embeddings": True},
    gated=False,
    query_bias=True,
    output_bias=True,
    mlp_bias=True,
    norm_bias=True,
    positions=2,
)
GPT2: Final = replace(OPT, positions=0)

FAMILIES: Final[Mapping[str, Family]] = {
    "arcee": replace(LLAMA, gated=False),
    "cohere": COHERE,
    "cohere2": replace(COHERE, slides=4, always={**COHERE.always, "sliding_window": 4096}),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "ernie4_5": Family(
        always={"head_dim": 128, "num_key_value_heads": 2, "tie_word_embeddings": True}
    ),
    "exaone4": Family(4, {"sliding_window": 4096}, head_norms=True),
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "glm4": GLM4,
    "glm4_moe": Family(always={"num_key_value_heads": 8}, experts=True, output_bias=False),
    "glm4_moe_lite": DEEPSEEK,
    "gpt2": GPT2,
    "gpt_neox": replace(OPT, always={"attention_bias": True}, positions=None),
    "gpt_oss": GPT_OSS,
    "granite": LLAMA,
    "granitemoe": replace(LLAMA, experts=True),
    "granitemoehybrid": replace(LLAMA, experts=True),
    "granitemoeshared": replace(LLAMA, experts=True),
    "hunyuan_v1_dense": Family(head_norms=True),
    "internlm2": LLAMA,
    "internlm3": LLAMA,
    "kimi_k2": DEEPSEEK,
    "llama": LLAMA,
    "mimo": QWEN2,
    "minimax_m2": Family(
        always={"head_dim": 128, "num_key_value_heads": 8}, experts=True, head_norms=True
    ),
    "ministral": MISTRAL,
    "mistral": MISTRAL,
    "mixtral": MIXTRAL,
    "nemotron": replace(LLAMA, gated=False, norm_bias=True),
    "olmo2": Family(head_norms=True),
    "olmo3": Family(4, {"sliding_window": 4096}, head_norms=True),
    "olmoe": Family(experts=True, head_norms=True),
    "opt": OPT,
    "phi": replace(OPT, always={}, norms=1, positions=None),
    "phi3": Family(ALL_LAYERS, query_bias=False, output_bias=False),
    "phimoe": Family(ALL_LAYERS, {"num_key_value_heads": 8}, experts=True, norm_bias=True),
    "qwen2": QWEN2,
    "qwen2_5_vl": QWEN2_VL,
    "qwen2_5_vl_text": QWEN2_VL,
    "qwen2_moe": replace(QWEN2, within={}, experts=True),
    "qwen2_vl": QWEN2_VL,
    "qwen2_vl_text": QWEN2_VL,
    "qwen3": QWEN3,
    "qwen3_moe": _with(QWEN3_MOE, num_key_value_heads=4),
    "qwen3_vl_moe_text": replace(QWEN3_MOE, within=QWEN3_VL_MOE_SIZE, tables=4),
    "qwen3_vl_text": QWEN3_VL,
    "seed_oss": Family(
        always={"head_dim": 128, "num_key_value_heads": 8, "attention_bias": True},
        output_bias=False,
    ),
    "smollm3": Family(always={"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "stablelm": Family(norm_bias=True),
    "starcoder2": replace(
        OPT, slides=ALL_LAYERS, always={"tie_word_embeddings": True}, positions=None
    ),
}
