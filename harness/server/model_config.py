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
SWITCH: Final = "use_sliding_window"
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
    if path is None:
        return {}
    file = path / "config.json" if path.is_dir() else path
    config = read_json(file) or {}
    if config and not config.get("quantization_config"):
        config |= _quantization_elsewhere(config, file.parent)
    for name in TEXT_PARTS:
        text = ConfigValues(config).part(name).fields
        if text:
            return _with_text_part(config, text)
    return config


def _quantization_elsewhere(config: Config, folder: Path) -> dict[str, Any]:
    """Return the quantization_config that ModelOpt's own file, or an older field, stands for."""
    beside = read_json(folder / MODELOPT_FILE) or {}
    modelopt = beside.get("quantization")
    if isinstance(modelopt, Mapping):
        return {"quantization_config": {"quant_method": "modelopt", **modelopt}}
    compression = config.get("compression_config")
    if isinstance(compression, Mapping):
        return {"quantization_config": {"quant_method": "compressed-tensors", **compression}}
    return {}


def _with_text_part(config: Config, text: Config) -> dict[str, Any]:
    """Return the fields of a multimodal model, in which those of its text part count first."""
    given = {key: value for key, value in text.items() if value is not None}
    # a null of the text part is one only where the outer file says nothing either
    nulls = {key: None for key in text if config.get(key) is None}
    outer_type = config.get("model_type")
    if "model_type" not in given and isinstance(outer_type, str):
        given["model_type"] = TEXT_FAMILIES.get(outer_type, outer_type)
    return {**config, **nulls, **given, NESTED: True}


def values_of(config: Config) -> tuple[ConfigValues, Family]:
    """Return a view of the file with its family's values. Raises ConfigError: not a known one."""
    name = ConfigValues(config).word("model_type")
    if name not in FAMILIES:
        kind = "without model_type"
        if name:
            kind = f"of model_type {name!r}, whose layers are not known here"
        raise ConfigError(
            f"config.json is {kind}: expected one of {', '.join(FAMILIES)}; {WITHOUT_CONFIG}"
        )
    family = FAMILIES[name]
    return _with_defaults(config, family), family


def _with_defaults(config: Config, family: Family) -> ConfigValues:
    within = family.within if config.get(NESTED) else {}
    return ConfigValues(config, {**within, **family.always})


def context_limit(config: Config) -> int | None:
    """Return the model's own limit in tokens as vLLM derives it; None where no field names one.

    Raises ConfigError for a field that is no number.
    """
    name = ConfigValues(config).word("model_type")
    values = _with_defaults(config, FAMILIES.get(name, Family()))
    named = [values.whole(field, least=1) for field in CONTEXT]
    known = [length for length in named if length is not None]
    limit = values.whole(OWN_CONTEXT) or min(known, default=None)
    rope = values.part("rope_scaling" if values.value("rope_scaling") else "rope_parameters")
    kind = rope.word("rope_type", "type")
    is_unscaled = kind in ("", "default", *UNSCALED_ROPE) or "gemma3" in name
    if limit is None or is_unscaled:
        return limit
    factor = rope.real("factor")
    if factor is None:
        return limit
    return max(int(limit * factor), 1)


def model_shape(config: Config) -> ModelShape:
    """Return the layers. Raises ConfigError: a family or layers not known, a field missing."""
    values, family = values_of(config)
    name = values.word("model_type")
    rank = values.whole("kv_lora_rank") or 0
    hidden, layers, heads = _sizes(values, is_latent=rank > 0 or family.latent)
    draft_layers = values.whole("num_nextn_predict_layers", "num_mtp_modules") or 0
    for field, count in (("num_hidden_layers", layers), ("draft layers", draft_layers)):
        if count > MOST_LAYERS:
            raise values.odd(field, count, f"at most {MOST_LAYERS:,}")
    head_size = values.whole("head_dim", least=1)
    if head_size is None:
        if hidden % heads and not rank:
            raise values.odd("hidden_size", hidden, f"a multiple of the {heads} heads, or head_dim")
        head_size = max(hidden // heads, 1)
    latent_size = 0
    if rank:
        latent_size = rank + (values.whole("qk_rope_head_dim") or 0)
    return ModelShape(
        family=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(values, heads),
        head_size=head_size,
        windows=_windows(values, family, layers),
        latent_size=latent_size,
        context_limit=context_limit(config),
        quantization=values.part("quantization_config").word("quant_method"),
        kv_cache_dtype=own_kv_cache_dtype(config),
        draft_layers=draft_layers,
    )


def _sizes(values: ConfigValues, *, is_latent: bool) -> list[int]:
    """Return hidden size, layers and heads. Raises ConfigError where one is missing.

    Of a model with a latent cache, the sizes of that may not be missing either.
    """
    sizes = []
    missing = []
    for names in SIZES:
        size = values.whole(*names, least=1)
        if size is None:
            missing.append(names[0])
        else:
            sizes.append(size)
    if is_latent:
        missing += [field for field in LATENT if values.whole(field) is None]
    if missing:
        raise lacking(values.word("model_type"), missing)
    return sizes


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
    window = 0
    # A null is no window; a field left out is the family's own.
    is_null = values.has("sliding_window") and values.fields["sliding_window"] is None
    if not is_null:
        window = values.whole("sliding_window") or 0
    kinds = values.words("layer_types")
    if kinds:
        slides = _kinds(values, kinds, layers)
        if any(slides) and not window:
            raise lacking(name, ["sliding_window"])
    elif name == "granitemoehybrid":
        raise lacking(name, ["layer_types"])
    else:
        slides = _pattern(values, family, layers)
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
    if family.slides == LATE_LAYERS:
        return _late_layers(values, layers)
    if not values.flag(SWITCH, otherwise=True):
        return [False] * layers
    if values.flag(SWITCH) and family.slides == NO_LAYER:
        raise lacking(values.word("model_type"), ["layer_types"])
    letters = values.value(*PATTERN)
    if isinstance(letters, str) and letters and set(letters) <= {"L", "G"}:
        slides = [letters[layer % len(letters)] == "L" for layer in range(layers)]
        slides[-1] = False  # the last layer is global, whatever its letter
        return slides
    nth = values.whole(*PATTERN, least=1) or family.slides
    if family.slides in (NO_LAYER, ALL_LAYERS):
        return [family.slides == ALL_LAYERS] * layers
    return [(layer + 1) % nth > 0 for layer in range(layers)]


def _late_layers(values: ConfigValues, layers: int) -> list[bool]:
    """Return which layers slide where max_window_layers names the first one: all, or none."""
    first = layers
    if values.flag(SWITCH):
        first = values.whole("max_window_layers") or 0
    if 0 < first < layers:
        raise values.odd(
            "max_window_layers", first, f"0 or {layers}: vLLM slides all layers of it or none"
        )
    return [first == 0] * layers


def own_kv_cache_dtype(config: Config) -> str:
    """Return what vLLM's `auto` means by the model's quantization: "auto", "fp8" or "nvfp4"."""
    scheme = ConfigValues(config).part("quantization_config")
    inner = scheme.part("quantization")  # as ModelOpt's own file has it
    algorithm = scheme.word("kv_cache_quant_algo") or inner.word("kv_cache_quant_algo")
    if algorithm:
        for known in ("fp8", "nvfp4"):
            if algorithm.lower().startswith(known):
                return known
        return "auto"
    cache = scheme.part("kv_cache_scheme")
    if not cache.fields:
        return "auto"
    return "nvfp4" if cache.whole("num_bits") == BITS_OF_NVFP4 else "fp8"
