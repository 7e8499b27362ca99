"""Odd config.json files: each gives an answer or one sentence, never another exception."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import ConfigError
from harness.memory.model_shape import ModelShape
from harness.memory.parallel import Parallel
from harness.memory.weights import Weights
from harness.server.draft_weights import draft_weights, extra_layers_weights
from harness.server.model_config import context_limit, model_config, model_shape
from harness.server.model_weights import division_fault, model_weights

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).parent / "data" / "fit"
Config = dict[str, Any]
CONFIGS: list[Config] = [
    json.loads(path.read_text()) for path in sorted(DATA.glob("configs/*/config.json"))
] + [log["config"] for log in json.loads((DATA / "more_logs.json").read_text())]
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2.5, 3.0, 1e300, 10**30, "", "4", "4096", "-4", "1e3", "LLLG",
    "fp8", "auto", [], [8, 8], [None], ["full_attention"], ["re:(a+)+$"], ["re:["], {}, {"a": 1},
    {"quant_method": "awq", "bits": 0, "group_size": -1}, {"quant_method": 3},
    {"quant_method": "fp8", "weight_block_size": [0, 128]},
    {"quant_method": "gptq", "bits": 4, "dynamic": {"(": {"bits": 8}}, "extra_config": {"a": 3}},
    {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": None}}},
]  # fmt: skip
EXTRA = (
    "n_shared_experts", "num_experts_per_tok", "first_k_dense_replace", "moe_intermediate_size",
    "moe_layer_freq", "mlp_only_layers", "decoder_sparse_step", "rope_scaling", "rope_parameters",
    "quantization_config", "vision_config", "text_config", "sliding_window_pattern",
    "use_sliding_window", "max_window_layers", "layer_types", "audio_config", "head_dim",
    "kv_lora_rank", "q_lora_rank", "partial_rotary_factor", "tie_word_embeddings", "model_type",
    "attention_bias", "architectures", "num_nextn_predict_layers", "word_embed_proj_dim",
)  # fmt: skip


def parts(config: Config) -> list[Config]:
    """The objects of a file that can be changed."""
    return [config, *(value for value in config.values() if isinstance(value, dict))]


def mutated(seed: int) -> Config:
    """A published file with one to three of its fields odd."""
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    config = copy.deepcopy(draw.choice(CONFIGS))
    for _ in range(draw.randint(1, 3)):
        part = draw.choice(parts(config))
        name = draw.choice([*part, *EXTRA])
        if draw.random() < 0.15:
            part.pop(name, None)
        else:
            part[name] = copy.deepcopy(draw.choice(ODD))
    return config


def answers(config: Config) -> list[str]:
    """What each reader of a file says: its type, or the sentence of a refusal."""
    ways = Parallel(4, 2, expert=True)
    readers: list[Callable[[], Any]] = [
        lambda: model_shape(config),
        lambda: context_limit(config),
        lambda: model_weights(config, ways),
        lambda: division_fault(config, ways),
        lambda: draft_weights(config, CONFIGS[0]),
        lambda: extra_layers_weights(config),
    ]
    found = []
    for read in readers:
        try:
            answer = read()
        except ConfigError as error:
            found.append(str(error))
        else:
            assert isinstance(answer, ModelShape | Weights | int | str | None)
            found.append("")
    return found


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_mutated_files(first: int, tmp_path: Path) -> None:
    """An answer or one sentence, for a hundred of them."""
    for seed in range(first, first + 100):
        (tmp_path / "config.json").write_text(json.dumps(mutated(seed)))
        try:
            config = model_config(tmp_path)
        except ConfigError as error:
            sentences = [str(error)]
        else:
            sentences = answers(config)
        for sentence in filter(None, sentences):
            assert sentence.endswith("."), (seed, sentence)
            assert "\n" not in sentence
            assert "config.json" in sentence, (seed, sentence)


def test_most_are_answered() -> None:
    """A field that decides nothing stops nothing."""
    answered = 0
    for seed in range(200):
        try:
            model_shape(mutated(seed))
        except ConfigError:
            continue
        answered += 1
    assert 60 < answered < 180


LLAMA: Config = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14_336,
    "vocab_size": 128_256,
}
DEEPSEEK: Config = json.loads((DATA / "configs/deepseek-v2-lite/config.json").read_text())


@pytest.mark.parametrize(
    "edits",
    [
        {"num_attention_heads": "32", "hidden_size": "4096"},
        {"num_hidden_layers": 32.0},
        {"quantization_config": None, "rope_scaling": None, "head_dim": None},
        {"tie_word_embeddings": "false"},
        {"layer_types": ["full_attention"] * 40},  # more than there are layers
    ],
)
def test_written_otherwise(edits: Config) -> None:
    """Numbers as text and nulls mean the same."""
    assert model_shape(LLAMA | edits) == model_shape(LLAMA)
    assert model_weights(LLAMA | edits) == model_weights(LLAMA)


@pytest.mark.parametrize(
    "name", ["n_shared_experts", "num_experts_per_tok", "first_k_dense_replace", "moe_layer_freq"]
)
def test_nulls_of_transformers(name: str) -> None:
    """Null is as if the field were not there."""
    without = {key: value for key, value in DEEPSEEK.items() if key != name}
    assert model_weights(DEEPSEEK | {name: None}) == model_weights(without)


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ({"num_attention_heads": None}, "'llama', lacks num_attention_heads: expected the whole"),
        ({"hidden_size": None, "num_hidden_layers": None}, "lacks hidden_size, num_hidden_layers"),
        ({"num_key_value_heads": [8, 8]}, r"has \[8, 8\] as num_key_value_heads: expected a whole"),
        ({"num_hidden_layers": -1}, "has -1 as num_hidden_layers: expected a whole number"),
        ({"num_attention_heads": True}, "has True as num_attention_heads"),
        ({"quantization_config": "fp8"}, "'fp8' as quantization_config: expected an object"),
        ({"layer_types": "full_attention"}, "as layer_types: expected a list of texts"),
        ({"layer_types": ["mamba", "full_attention"] * 16}, "layers of mamba: expected only full"),
        ({"layer_types": ["full_attention"] * 3}, "'3 entries' as layer_types: expected one for"),
        ({"hidden_size": 4097}, "a multiple of the 32 heads, or head_dim"),
        ({"num_hidden_layers": 10**9}, "expected at most 1,000"),
        ({"num_nextn_predict_layers": 10**9}, "as draft layers: expected at most 1,000"),
        ({"model_type": None}, "without model_type: expected one of"),
        ({"model_type": "jamba"}, "model_type 'jamba', whose layers are not known here"),
        ({"model_type": "gemma3_text", "sliding_window_pattern": "odd"}, "'odd' as sliding"),
        ({"use_sliding_window": "perhaps"}, "'perhaps' as use_sliding_window: expected true or"),
        ({"max_position_embeddings": "long"}, "'long' as max_position_embeddings"),
    ],
)  # fmt: skip
def test_refusals(edits: Config, said: str) -> None:
    """The field is named; families are listed only where none is known."""
    with pytest.raises(ConfigError, match=said) as refused:
        model_shape(LLAMA | edits)
    assert ("gemma3_text, " in str(refused.value)) == ("model_type" in said)


YARN = {"original_max_position_embeddings": 4096, "factor": "40"}


@pytest.mark.parametrize(
    ("edits", "limit"),
    [
        ({}, None),
        ({"max_position_embeddings": 8192}, 8192),
        ({"n_positions": "1024"}, 1024),
        ({"max_position_embeddings": 163_840, "rope_scaling": {"type": "yarn"} | YARN}, 163_840),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "yarn"} | YARN}, 4096),
        ({"n_positions": 4096, "rope_parameters": {"rope_type": "deepseek_yarn"} | YARN}, 4096),
        ({"max_position_embeddings": 4096, "rope_parameters": None,
          "rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
        ({"model_type": "cohere", "max_position_embeddings": 8192, "model_max_length": 131_072},
         131_072),
        ({"max_position_embeddings": 8192, "max_seq_len": 4096}, 4096),
        ({"n_positions": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 131_072, "rope_scaling": {"rope_type": "llama3", "factor": 8}},
         131_072),
        ({"max_position_embeddings": 32_768, "rope_scaling": {"type": "mrope"}}, 32_768),
        ({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
         131_072),  # it is scaled already
        ({"model_type": "unheard of", "max_seq_len": 2048}, 2048),
    ],
)  # fmt: skip
def test_a_models_own_limit(edits: Config, limit: int | None) -> None:
    """In tokens, with the scale of its positions, as vLLM derives it."""
    assert context_limit(LLAMA | edits) == limit


@pytest.mark.parametrize(
    ("edits", "windows"),
    [
        ({"model_type": "mistral"}, {4096: 32}),  # Transformers' own
        ({"model_type": "mistral", "sliding_window": None}, {0: 32}),
        ({"model_type": "mistral", "sliding_window": "1024"}, {1024: 32}),
        ({"model_type": "gemma2"}, {4096: 16, 0: 16}),
        ({"model_type": "gemma3_text", "_sliding_window_pattern": 4}, {4096: 24, 0: 8}),
        ({"model_type": "exaone4", "sliding_window_pattern": "LLLG"}, {4096: 24, 0: 8}),
        ({"model_type": "exaone4", "sliding_window": None}, {0: 32}),
        ({"model_type": "qwen2", "sliding_window": 4096}, {0: 32}),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 0}, {4096: 32}),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 32}, {0: 32}),
        ({"model_type": "phi3", "use_sliding_window": False, "sliding_window": 99}, {0: 32}),
    ],
)
def test_windows(edits: Config, windows: dict[int, int]) -> None:
    """Layers by window: as the file says, else as the family has them."""
    assert model_shape(LLAMA | edits).layers_by_window == windows


@pytest.mark.parametrize(
    ("scheme", "want"),
    [
        (None, "auto"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"kv_cache_scheme": None}, "auto"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"quantization": {"kv_cache_quant_algo": "NVFP4"}}, "nvfp4"),
        ({"kv_cache_quant_algo": None}, "auto"),
    ],
)
def test_a_models_own_kv_cache(scheme: Config | None, want: str) -> None:
    """What vLLM takes for `--kv-cache-dtype auto`."""
    assert model_shape(LLAMA | {"quantization_config": scheme}).kv_cache_dtype == want


def test_a_slow_pattern_is_not_tried() -> None:
    """It could take for ever."""
    scheme = {"quant_method": "fp8", "ignore": ["re:(.+)+x"]}
    with pytest.raises(ConfigError, match="simple regular expression"):
        model_weights(LLAMA | {"quantization_config": scheme})
