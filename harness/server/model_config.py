"""What a model's Hugging Face `config.json` says of its KV cache, parameters and weights.

Only families whose layers are all attention of a known kind are read; any other is refused, for a
guess would be wrong by factors. The rules are those of vLLM 0.32 and Transformers 5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import nan
from pathlib import Path
from typing import Any, Final

from harness.errors import ConfigError
from harness.measure.memory_fit import KvLayout, kv_layer_bytes
from harness.runfolder.json_files import read_json

Config = Mapping[str, Any]

CONTEXT: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
EXPERTS: Final = ("num_local_experts", "n_routed_experts", "num_experts")
NEEDED: Final = ("hidden_size", "num_hidden_layers", "num_attention_heads")
LATENT: Final = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
# model_type -> which layers slide where no `layer_types` says: 0 none, 1 all, n all but each n-th
FAMILIES: Final = {
    "llama": 0, "qwen2": 0, "qwen2_vl": 0, "qwen2_5_vl": 0, "qwen2_5_vl_text": 0, "qwen3": 0,
    "qwen3_vl_text": 0, "qwen3_moe": 0, "qwen3_vl_moe_text": 0, "glm4_moe": 0, "gemma": 0,
    "granite": 0, "deepseek_v2": 0, "deepseek_v3": 0, "kimi_k2": 0, "mistral": 1, "mixtral": 1,
    "phi3": 1, "gemma2": 2, "gpt_oss": 2, "gemma3_text": 6,
}  # fmt: skip
SLIDES: Final = {"full_attention": False, "sliding_attention": True}
NOT_READ: Final = ("index_topk", "attention_chunk_size", "num_kv_shared_layers", "block_configs")
WIDTHS: Final = {"float32": 4, "float": 4, "fp8": 1}  # bytes; 2 for all others
QUANTIZED_BITS: Final = {"": 16, "fp8": 8, "awq": 4, "gptq": 4}  # vLLM loads float32 in 16 bit too


def model_config(path: Path | None) -> dict[str, Any]:
    """Return a file or a folder's config.json, of a multimodal model its text part; {}: none."""
    file = path / "config.json" if path and path.is_dir() else path
    config = (read_json(file) if file else None) or {}
    return config | (config.get("text_config") or {})


def context_limit(config: Config) -> int | None:
    """Return the model's own limit in tokens; None where its config.json names none."""
    return next((int(config[name]) for name in CONTEXT if config.get(name)), None)


def kv_layout(config: Config, value_bytes: int, gpus: int = 1, block_tokens: int = 16) -> KvLayout:
    """Return the KV cache of so many GPUs. Raises ConfigError with what is missing."""
    family, rank = config.get("model_type"), config.get("kv_lora_rank") or 0
    missing = [name for name in (*NEEDED, *(LATENT if rank else ())) if not config.get(name)]
    windows = {} if family not in FAMILIES or missing else _windows(config)
    if not windows:
        raise ConfigError(
            f"config.json, of model_type {family!r}, lacks {', '.join(missing) or 'known layers'}: "
            f"expected one of {', '.join(FAMILIES)}, whose layer_types, if any, are full_attention "
            "or sliding_attention; try a running vLLM's URL without --config."
        )
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    if heads % gpus or (kv_heads % gpus and gpus % kv_heads):
        raise ConfigError(
            f"--tensor-parallel is {gpus}, and the model has {heads} attention and {kv_heads} KV "
            "heads: expected a number that divides them; try --tensor-parallel "
            f"{max(n for n in (1, 2, 4, 8) if n < gpus and not heads % n)}."
        )
    size = config.get("head_dim") or config["hidden_size"] // heads
    latent = rank and rank + config["qk_rope_head_dim"]
    layer = kv_layer_bytes(kv_heads, size, value_bytes, gpus, latent)
    return KvLayout(layer, windows, block_tokens)


def _windows(config: Config) -> dict[int, int]:
    """Return layers by window, 0 being the whole context; {} where the file does not say."""
    layers, window = config["num_hidden_layers"], config.get("sliding_window") or 0
    n = config.get("sliding_window_pattern") or FAMILIES[config["model_type"]]
    slides = [(i + 1) % n > 0 if n > 1 else n * window > 0 for i in range(layers)]
    if kinds := config.get("layer_types"):
        slides = [SLIDES[kind] for kind in kinds[:layers] if kind in SLIDES]
    unknown = any(map(config.get, NOT_READ)) or (config.get("use_sliding_window") and not kinds)
    if unknown or len(slides) < layers or (any(slides) and not window):
        return {}
    return dict(Counter(window if slide else 0 for slide in slides))


def model_weights(config: Config) -> tuple[float, float, float]:
    """Return parameters (without norms and biases), those that multiply a token, and bytes."""
    hidden, layers, heads = (config[name] for name in NEEDED)
    kv_heads = config.get("num_key_value_heads") or heads
    attention = 2 * hidden * (config.get("head_dim") or hidden // heads) * (heads + kv_heads)
    if config.get("kv_lora_rank"):
        rank, rope, nope, value = (config[name] for name in LATENT)
        query, low = heads * (nope + rope), config.get("q_lora_rank")
        attention = low * (hidden + query) if low else hidden * query
        attention += heads * (rank * (nope + value) + value * hidden) + hidden * (rank + rope)
    experts = next((config[name] for name in EXPERTS if config.get(name)), 0)
    sparse = layers - config.get("first_k_dense_replace", 0) if experts else 0
    wide = config.get("intermediate_size", nan)
    expert = 3 * hidden * config.get("moe_intermediate_size", wide) * sparse
    total = layers * attention + 3 * hidden * wide * (layers - sparse) + hidden * experts * sparse
    total += (experts + config.get("n_shared_experts", 0)) * expert
    tied = config.get("tie_word_embeddings", config["model_type"].startswith("gemma"))
    embeddings = config.get("vocab_size", nan) * hidden * (1 if tied else 2)
    scheme = config.get("quantization_config") or {}
    bits = scheme.get("bits") or QUANTIZED_BITS.get(scheme.get("quant_method", ""), nan)
    idle = max(experts - config.get("num_experts_per_tok", 0), 0) * expert
    return total + embeddings, total + embeddings - idle, total * bits / 8 + embeddings * 2


def kv_value_bytes(config: Config, flags: Mapping[str, Any]) -> int:
    """Return the bytes of a stored key or value, by vLLM's flags and what their `auto` means."""
    scheme = config.get("quantization_config") or {}
    own = scheme.get("kv_cache_scheme") or scheme.get("kv_cache_quant_algo")
    kinds = (flags.get("kv_cache_dtype"), "fp8" if own else None, flags.get("dtype"))
    kind = next((str(kind) for kind in kinds if kind not in (None, "auto")), "")
    return next((n for name, n in WIDTHS.items() if kind.startswith(name)), 2)
