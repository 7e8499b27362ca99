"""A model's shape from its Hugging Face `config.json`: layers, KV heads, parameters, weights.

Only families whose layers are all attention of a known kind are read; any other is refused, for a
guess would be wrong by factors. The rules are those of vLLM 0.26 and Transformers 5.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any, Final

from harness.errors import ConfigError
from harness.measure.memory_fit import WHOLE_CONTEXT, KvLayout, kv_layer_bytes
from harness.runfolder.json_files import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    Config = Mapping[str, Any]

CONTEXT: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
# model_type -> which layers have the `sliding_window` if there are no `layer_types`: 0 none, 1 all,
# n all but each n-th; the first line also by the names of their multimodal models' text parts
FAMILIES: Final = dict.fromkeys(
    ("llama", "qwen2", "qwen2_5_vl_text", "qwen3", "qwen3_vl_text", "qwen3_moe",
     "qwen3_vl_moe_text", "gemma", "granite", "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe"),
    0,
) | {"mistral": 1, "mixtral": 1, "phi3": 1, "gemma2": 2, "gpt_oss": 2, "gemma3_text": 6}  # fmt: skip
# what Transformers supplies where the files of Gemma 3 are silent
GEMMA3: Final = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
                 "vocab_size": 262_208, "max_position_embeddings": 131_072}  # fmt: skip
KINDS: Final = {"full_attention": False, "sliding_attention": True}
NOT_READ: Final = ("index_topk", "attention_chunk_size", "num_kv_shared_layers", "block_configs")
EXPERTS: Final = ("num_local_experts", "n_routed_experts", "num_experts")
WIDTHS: Final = {"float32": 4, "float": 4, "fp8": 1}  # bytes; 2 for all others
MODEL_BYTES: Final = 2  # vLLM loads float32 in 16 bit too, unless --dtype says so
QUANTIZED_BITS: Final = {"fp8": 8, "awq": 4, "gptq": 4}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the sums need; parameters and weights are those of the text part, NaN if unknown."""

    layers_by_window: Mapping[int, int]
    heads: int
    kv_heads: int
    head_dim: int
    latent_dim: int  # of multi-head latent attention, else 0
    max_context_tokens: int | None
    parameters: float
    active_parameters: float  # that multiply a token; fewer than all with experts
    weight_bytes: float

    def kv_layout(self, value_bytes: int, tensor_parallel: int = 1, **blocks: int) -> KvLayout:
        """Return the KV cache of one of so many GPUs. Raises ConfigError if they do not divide."""
        n, kv_heads = tensor_parallel, self.kv_heads
        if self.heads % n or (kv_heads % n and n % kv_heads):
            raise ConfigError(
                f"--tensor-parallel is {n}, and the model has {self.heads} attention heads and "
                f"{kv_heads} KV heads: expected a number that divides them; try "
                f"{max(k for k in (1, 2, 4, 8) if k < n and not self.heads % k)}."
            )
        token = kv_layer_bytes(kv_heads, self.head_dim, value_bytes, n, self.latent_dim)
        return KvLayout(token, self.layers_by_window, **blocks)


def model_config(folder: Path | None, name: str = "config.json") -> dict[str, Any]:
    """Return config.json, of a multimodal model its text part; {} where there is none."""
    config = (read_json(folder / name) if folder else None) or {}
    return config | (config.get("text_config") or {})


def model_context(folder: Path | None) -> int | None:
    """Return the model's own limit in tokens; None where its config.json names none."""
    return _limit(model_config(folder))


def _limit(config: Config) -> int | None:
    return next((int(config[name]) for name in CONTEXT if config.get(name)), None)


def model_shape(config: Config) -> ModelShape:
    """Return the shape that a configuration describes. Raises ConfigError with what is missing."""
    family = str(config.get("model_type"))
    if family not in FAMILIES:
        raise ConfigError(
            f"the model_type is {family}, whose layers are not known here: expected one of "
            f"{', '.join(FAMILIES)}; for a model that is built like one of these, try its name in "
            "a copy of config.json."
        )
    if unread := [field for field in NOT_READ if config.get(field)]:
        raise ConfigError(
            f"config.json has {' and '.join(unread)}, which changes the KV cache in a way that "
            "is not computed here: expected plain attention; try `vllm-harness fit URL` on a running vLLM."
        )
    config = (GEMMA3 if family == "gemma3_text" else {}) | dict(config)
    heads = _need(config, "num_attention_heads")
    head_dim = config.get("head_dim") or _need(config, "hidden_size") // heads
    rank = config.get("kv_lora_rank")
    latent = rank + _need(config, "qk_rope_head_dim") if rank else 0
    kv_heads = config.get("num_key_value_heads") or heads
    return ModelShape(
        _windows(config, FAMILIES[family]), heads, kv_heads, head_dim, latent, _limit(config),
        *_weights(config, heads, kv_heads, head_dim),
    )  # fmt: skip


def _need(config: Config, field: str) -> int:
    if not config.get(field):
        raise ConfigError(
            f"config.json has no {field}: expected the whole configuration of a decoder; try the "
            "file in the model's own folder."
        )
    return int(config[field])


def _windows(config: Config, pattern: int) -> dict[int, int]:
    layers, window = _need(config, "num_hidden_layers"), config.get("sliding_window")
    pattern = config.get("sliding_window_pattern") or pattern
    slides: list[bool | None] = [bool(pattern and (n + 1) % pattern) for n in range(layers)]
    if pattern == 1:
        slides = [bool(window)] * layers
    if kinds := config.get("layer_types"):
        slides = [KINDS.get(kind) for kind in kinds[:layers]]
    elif config.get("use_sliding_window"):
        slides = []  # Qwen: only layer_types says which ones
    if len(slides) < layers or None in slides or (any(slides) and not window):
        raise ConfigError(
            f"config.json does not say how each of its {layers} layers attends: expected "
            "layer_types of full_attention and sliding_attention, and a sliding_window; try "
            "`vllm-harness fit URL` on a running vLLM."
        )
    return dict(Counter(int(window) if slide and window else WHOLE_CONTEXT for slide in slides))


def _weights(
    config: Config, heads: int, kv_heads: int, head_dim: int
) -> tuple[float, float, float]:
    """Return parameters, those active for a token, and bytes. Norms and biases are left out."""
    layers, hidden = config["num_hidden_layers"], config.get("hidden_size")
    vocabulary, wide = config.get("vocab_size"), config.get("intermediate_size")
    if not (hidden and vocabulary and wide) or config.get("decoder_sparse_step", 1) != 1:
        return nan, nan, nan
    attention = hidden * head_dim * 2 * (heads + kv_heads)
    if rank := config.get("kv_lora_rank"):
        nope, rope, value = (_need(config, f"{x}_head_dim") for x in ("qk_nope", "qk_rope", "v"))
        low = config.get("q_lora_rank")
        query = low * (hidden + heads * (nope + rope)) if low else hidden * heads * (nope + rope)
        attention = (
            query + hidden * (rank + rope) + heads * (rank * (nope + value) + value * hidden)
        )
    experts = next((config[name] for name in EXPERTS if config.get(name)), 0)
    dense = len(config.get("mlp_only_layers") or ()) + config.get("first_k_dense_replace", 0)
    sparse = layers - dense if experts else 0
    narrow = config.get("moe_intermediate_size") or wide
    shared = narrow * config.get("n_shared_experts", 0)
    expert = 3 * hidden * narrow * sparse  # gate, up and down: one expert in each of its layers
    always = layers * attention + 3 * hidden * (wide * (layers - sparse) + shared * sparse)
    always += hidden * experts * sparse  # which route
    total = always + experts * expert
    table = vocabulary * hidden
    tied = config.get("tie_word_embeddings", str(config.get("model_type")).startswith("gemma"))
    embeddings = table if tied else 2 * table
    scheme = config.get("quantization_config")
    bits = 8 * MODEL_BYTES if not scheme else scheme.get("bits") or QUANTIZED_BITS.get(
        scheme.get("quant_method"), nan)  # fmt: skip
    active = always + config.get("num_experts_per_tok", 0) * expert + table
    return total + embeddings, active, total * bits / 8 + embeddings * MODEL_BYTES


def stored_bytes(folder: Path) -> float:
    """Return the size of the weights in a model's folder; 0 without any."""
    index = read_json(folder / "model.safetensors.index.json") or {}
    files = sum(file.stat().st_size for file in folder.glob("model*.safetensors"))
    return float((index.get("metadata") or {}).get("total_size") or files)


def kv_value_bytes(config: Config, flags: Mapping[str, Any]) -> int:
    """Return the bytes of a stored key or value, by vLLM's flags and what their `auto` means."""
    scheme = config.get("quantization_config") or {}
    own = "fp8" if scheme.get("kv_cache_scheme") or scheme.get("kv_cache_quant_algo") else None
    kinds = (flags.get("kv_cache_dtype"), own, flags.get("dtype"))
    kind = next((str(kind) for kind in kinds if kind not in (None, "auto")), "")
    return next((n for name, n in WIDTHS.items() if kind.startswith(name)), MODEL_BYTES)
