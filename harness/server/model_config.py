"""What a model's Hugging Face `config.json` says of its layers, KV cache and weights.

Only families whose layers are all attention of a known kind are read; any other is refused, for a
guess would be wrong by factors. The rules are those of vLLM 0.32 and Transformers 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from harness.errors import ConfigError
from harness.memory.families import ALL_LAYERS, FAMILIES, LATE_LAYERS, NO_LAYER, Family
from harness.memory.model_shape import ModelShape
from harness.records.json_files import read_json
from harness.server.config_values import Config, ConfigValues

if TYPE_CHECKING:
    from pathlib import Path

TEXT_PARTS: Final = ("text_config", "llm_config", "language_config")
# The family of a text part that does not name its own.
TEXT_FAMILIES: Final = {
    "gemma3": "gemma3_text",
    "llava": "llama",
    "llava_next": "llama",
    "mistral3": "mistral",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
}
NESTED: Final = "nested_text_config"  # a mark of ours: Transformers' sizes fill what is left out
MODELOPT_FILE: Final = "hf_quant_config.json"
CONTEXT: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
OWN_CONTEXT: Final = "model_max_length"  # of Command R: counts before any of CONTEXT
SIZES: Final = (
    ("hidden_size", "n_embd"),
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
)
LATENT: Final = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
MOST_LAYERS: Final = 1_000
SHOWN: Final = 80  # characters of what was found
BITS_OF_NVFP4: Final = 4
SLIDES: Final = {"full_attention": False, "sliding_attention": True, "attention": False}
# Layers that keep something else than keys and values, or share them: not counted here.
NOT_READ: Final = (
    "index_topk",
    "attention_chunk_size",
    "num_kv_shared_layers",
    "block_configs",
    "linear_attn_config",
)
PATTERN: Final = ("sliding_window_pattern", "_sliding_window_pattern")
# Kinds whose factor is in the limit already.
UNSCALED_ROPE: Final = (
    "su",
    "longrope",
    "llama3",
    "yarn",
    "deepseek_yarn",
    "deepseek_llama_scaling",
)
WITHOUT_CONFIG: Final = "try a running vLLM's URL without --config."


def model_config(path: Path | None) -> dict[str, Any]:
    """Return a file or a folder's config.json, of a multimodal model its text part; {}: none.

    ModelOpt's own file beside it is taken as its quantization_config if it has none. Raises
    ConfigError where a part is no object.
    """
    file = path / "config.json" if path and path.is_dir() else path
    config = (read_json(file) if file else None) or {}
    if file and config and not config.get("quantization_config"):
        beside = (read_json(file.parent / MODELOPT_FILE) or {}).get("quantization")
        older = config.get("compression_config")
        if isinstance(beside, Mapping):
            config["quantization_config"] = {"quant_method": "modelopt", **beside}
        elif isinstance(older, Mapping):
            config["quantization_config"] = {"quant_method": "compressed-tensors", **older}
    for name in TEXT_PARTS:
        text = ConfigValues(config).part(name).fields
        if text:
            said = {key: value for key, value in text.items() if value is not None}
            silent = {key: None for key in text if config.get(key) is None}
            outer = config.get("model_type")
            if "model_type" not in said and isinstance(outer, str):
                said["model_type"] = TEXT_FAMILIES.get(outer, outer)
            return {**config, **silent, **said, NESTED: True}
    return config


def values_of(config: Config) -> tuple[ConfigValues, Family]:
    """Return a view of the file with its family's values. Raises ConfigError: not a known one."""
    name = ConfigValues(config).word("model_type")
    if name not in FAMILIES:
        found = f"of model_type {name!r}, whose layers are not known here" if name else ""
        raise ConfigError(
            f"config.json is {found or 'without model_type'}: expected one of "
            f"{', '.join(FAMILIES)}; {WITHOUT_CONFIG}"
        )
    family = FAMILIES[name]
    defaults = {**(family.within if config.get(NESTED) else {}), **family.always}
    return ConfigValues(config, defaults), family


def context_limit(config: Config) -> int | None:
    """Return the model's own limit in tokens as vLLM derives it; None where no field names one.

    Raises ConfigError for a field that is no number.
    """
    name = ConfigValues(config).word("model_type")
    family = FAMILIES.get(name, Family())
    within = family.within if config.get(NESTED) else {}
    values = ConfigValues(config, {**within, **family.always})
    named = [values.whole(field, least=1) for field in CONTEXT]
    smallest = min((length for length in named if length is not None), default=None)
    limit = values.whole(OWN_CONTEXT) or smallest
    rope = values.part("rope_scaling" if values.value("rope_scaling") else "rope_parameters")
    kind = rope.word("rope_type", "type")
    if limit is None or kind in ("", "default", *UNSCALED_ROPE) or "gemma3" in name:
        return limit
    factor = rope.real("factor")
    return limit if factor is None else max(int(limit * factor), 1)


def model_shape(config: Config) -> ModelShape:
    """Return the layers. Raises ConfigError: a family or layers not known, a field missing."""
    values, family = values_of(config)
    name = values.word("model_type")
    rank = values.whole("kv_lora_rank") or 0
    sizes = [values.whole(*names, least=1) for names in SIZES]
    missing = [names[0] for names, size in zip(SIZES, sizes, strict=True) if size is None]
    if rank or family.latent:
        missing += [one for one in LATENT if values.whole(one) is None]
    if missing:
        raise lacking(name, missing)
    hidden, layers, heads = (size or 0 for size in sizes)
    draft_layers = values.whole("num_nextn_predict_layers", "num_mtp_modules") or 0
    for field, count in (("num_hidden_layers", layers), ("draft layers", draft_layers)):
        if count > MOST_LAYERS:
            raise values.odd(field, count, f"at most {MOST_LAYERS:,}")
    head_size = values.whole("head_dim", least=1)
    if head_size is None and hidden % heads and not rank:
        raise values.odd("hidden_size", hidden, f"a multiple of the {heads} heads, or head_dim")
    latent = rank and rank + (values.whole("qk_rope_head_dim") or 0)
    return ModelShape(
        family=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(values, heads),
        head_size=head_size or max(hidden // heads, 1),
        windows=_windows(values, family, layers),
        latent_size=latent,
        context_limit=context_limit(config),
        quantization=values.part("quantization_config").word("quant_method"),
        kv_cache_dtype=own_kv_cache_dtype(config),
        draft_layers=draft_layers,
    )


def lacking(family: str, fields: list[str]) -> ConfigError:
    """Return the refusal of a file of a known family that lacks fields."""
    return ConfigError(
        f"config.json, of model_type {family!r}, lacks {', '.join(fields)}: expected the whole "
        f"file that was published with the model; add what is missing, or {WITHOUT_CONFIG}"
    )


def _kv_heads(values: ConfigValues, heads: int) -> int:
    """Return the KV heads: a null, or no field, means as many as heads but for some families."""
    if values.has("num_key_value_heads") and values.fields["num_key_value_heads"] is None:
        return heads
    return values.whole("num_key_value_heads", least=1) or heads


def _windows(values: ConfigValues, family: Family, layers: int) -> tuple[int, ...]:
    """Return each layer's window, 0 being the whole context. Raises ConfigError: not known."""
    name = values.word("model_type")
    for field in NOT_READ:
        if values.value(field):
            raise ConfigError(
                f"config.json, of model_type {name!r}, has {field}: expected layers that each keep "
                f"the keys and values of their own tokens; {WITHOUT_CONFIG}"
            )
    # A null is no window; a field left out is the family's own.
    silenced = values.has("sliding_window") and values.fields["sliding_window"] is None
    window = 0 if silenced else values.whole("sliding_window") or 0
    kinds = values.words("layer_types")
    if not kinds and name == "granitemoehybrid":
        raise lacking(name, ["layer_types"])
    slides = _kinds(values, kinds, layers) if kinds else _pattern(values, family, layers)
    if any(slides) and not window and kinds:
        raise lacking(name, ["sliding_window"])
    return tuple(window if slide else 0 for slide in slides)


def _kinds(values: ConfigValues, kinds: tuple[str, ...], layers: int) -> list[bool]:
    """Return which layers slide, as the file lists them."""
    unknown = sorted(set(kinds[:layers]) - set(SLIDES))
    if unknown:
        raise ConfigError(
            f"config.json has layers of {', '.join(unknown)[:SHOWN]}: expected only "
            f"{', '.join(SLIDES)}; {WITHOUT_CONFIG}"
        )
    if len(kinds) < layers:
        raise values.odd("layer_types", f"{len(kinds)} entries", f"one for each of {layers} layers")
    return [SLIDES[kind] for kind in kinds[:layers]]


def _pattern(values: ConfigValues, family: Family, layers: int) -> list[bool]:
    """Return which layers slide by the family's rule, or the pattern that the file names."""
    switch = "use_sliding_window"
    if family.slides == LATE_LAYERS:
        first = (values.whole("max_window_layers") or 0) if values.flag(switch) else layers
        if 0 < first < layers:
            raise values.odd(
                "max_window_layers", first, f"0 or {layers}: vLLM slides all layers of it or none"
            )
        return [first == 0] * layers
    if values.value(switch) is not None and not values.flag(switch):
        return [False] * layers
    if values.flag(switch) and family.slides == NO_LAYER:
        raise lacking(values.word("model_type"), ["layer_types"])
    every = values.value(*PATTERN)
    if isinstance(every, str) and every and set(every) <= {"L", "G"}:
        own = [every[layer % len(every)] == "L" for layer in range(layers)]
        return [slide and layer < layers - 1 for layer, slide in enumerate(own)]
    nth = values.whole(*PATTERN, least=1) or family.slides
    if family.slides in (NO_LAYER, ALL_LAYERS):
        return [family.slides == ALL_LAYERS] * layers
    return [(layer + 1) % nth > 0 for layer in range(layers)]


def own_kv_cache_dtype(config: Config) -> str:
    """Return what vLLM's `auto` means by the model's quantization: "auto", "fp8" or "nvfp4"."""
    scheme = ConfigValues(config).part("quantization_config")
    inner = scheme.part("quantization")  # as ModelOpt's own file has it
    algorithm = scheme.word("kv_cache_quant_algo") or inner.word("kv_cache_quant_algo")
    if algorithm:
        known = ("fp8", "nvfp4")
        return next((name for name in known if algorithm.lower().startswith(name)), "auto")
    bits = scheme.part("kv_cache_scheme")
    if not bits.fields:
        return "auto"
    return "nvfp4" if bits.whole("num_bits") == BITS_OF_NVFP4 else "fp8"
