"""Weights as start logs of vLLM have them, and as models' cards count parameters."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigError
from harness.memory.parallel import Parallel
from harness.memory.weights import Weights
from harness.server.draft_weights import draft_weights, extra_layers_weights
from harness.server.model_config import model_config, model_shape
from harness.server.model_weights import division_fault, model_weights, quantized_by

DATA = Path(__file__).parent / "data" / "fit"
GIB = 2**30
Config = dict[str, Any]
LOGS = [log for log in json.loads((DATA / "logs.json").read_text()) if log["weights_gib"]]
MORE_LOGS = json.loads((DATA / "more_logs.json").read_text())
REFUSED = "qwen3-next-80b-2xh200"  # linear attention
ONLINE = {"granite40-micro-l40s": "fp8"}  # quantized by a flag
# per cent of the log, where it is not within 0.7
WIDER = {
    "r1-qwen14b-2x4090-no": 1.2,
    "gemma3-27b-mi300x": 1.3,  # ROCm
    "gemma3-1b-5090": 1.2,
}
# The file leaves open how scales or kernels store them: the log is within the range.
RANGES = {"phi4-bnb4-a100", "gpt-oss-120b-h100-0.9-no", "gpt-oss-120b-h100-0.14-no"}


def case(name: str) -> Config:
    """A published model's configuration."""
    return model_config(DATA / "configs" / name)


def of_one_gpu(weights: Weights) -> float:
    """GiB, of what is known."""
    assert weights.one_gpu is not None
    return weights.one_gpu / GIB


def most_of_one_gpu(weights: Weights) -> float:
    """The same, at most."""
    assert weights.most_one_gpu is not None
    return weights.most_one_gpu / GIB


@pytest.mark.parametrize("log", LOGS, ids=lambda log: str(log["id"]))
def test_logs(log: Config) -> None:
    """What the fullest GPU loaded, in GiB."""
    if log["id"] == REFUSED:
        with pytest.raises(ConfigError, match="model_type 'qwen3_next', whose layers"):
            model_weights(model_config(DATA / log["config"]))
        return
    config = quantized_by(model_config(DATA / log["config"]), ONLINE.get(log["id"], ""))
    weights = model_weights(config, Parallel(log["tp"], log["pp"], expert=log["ep"]))
    least = of_one_gpu(weights)
    most = most_of_one_gpu(weights)
    if log["id"] in RANGES:
        assert least * 0.997 <= log["weights_gib"] <= most * 1.002
        assert most / least < 1.08
    else:
        assert least == pytest.approx(log["weights_gib"], rel=WIDER.get(log["id"], 0.7) / 100)
        assert most == least


def test_all_logs_but_one_are_counted() -> None:
    """None is passed over."""
    assert len(LOGS) == 23
    assert REFUSED in {log["id"] for log in LOGS}


@pytest.mark.parametrize("log", MORE_LOGS, ids=lambda log: str(log["id"]))
def test_more_logs(log: Config, tmp_path: Path) -> None:
    """The same, of logs that the formulas were not made on, within 0.7%."""
    (tmp_path / "config.json").write_text(json.dumps(log["config"]))
    weights = model_weights(model_config(tmp_path), Parallel(log["tp"]))
    assert of_one_gpu(weights) == pytest.approx(log["weights_gib"], rel=0.007)


LLAMA_1B: Config = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 8192,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
}


def test_a_log_with_bitsandbytes() -> None:
    """Llama 3.2 1B: 2.3185 GiB in 16 bit, 0.9786 with 4 bit (oumi-ai/oumi#1223)."""
    assert of_one_gpu(model_weights(LLAMA_1B)) == pytest.approx(2.3185, rel=0.001)
    weights = model_weights(quantized_by(LLAMA_1B, "bitsandbytes"))
    assert of_one_gpu(weights) < 0.9786 < most_of_one_gpu(weights)
    assert of_one_gpu(weights) == pytest.approx(0.9786, rel=0.01)


def shape(family: str, *sizes: int, **more: Any) -> Config:
    """A configuration by hidden size, layers, heads, KV heads, feed-forward, vocabulary."""
    names = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "vocab_size",
    )
    return {"model_type": family, **dict(zip(names, sizes, strict=True)), **more}


MIXTRAL = shape(
    "mixtral", 4096, 32, 32, 8, 14_336, 32_000, num_local_experts=8, num_experts_per_tok=2
)
LLAMA_8B = shape("llama", 4096, 32, 32, 8, 14_336, 128_256)
OPT: Config = {
    "model_type": "opt",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "ffn_dim": 16_384,
    "vocab_size": 50_272,
    "max_position_embeddings": 2048,
    "word_embed_proj_dim": 4096,
}
GPT2: Config = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "n_positions": 1024,
    "vocab_size": 50_257,
}
QWEN_MOE = shape(
    "qwen2_moe",
    *(2048, 24, 16, 16, 5632, 151_936),
    moe_intermediate_size=1408,
    shared_expert_intermediate_size=5632,
    num_experts=60,
    num_experts_per_tok=4,
)
MINIMAX = shape(
    "minimax_m2",
    *(3072, 62, 48, 8, 1536, 200_064),
    num_local_experts=256,
    num_experts_per_tok=8,
)
GLM_FLASH = shape(
    "glm4_moe_lite",
    *(2048, 47, 20, 20, 10_240, 154_880),
    q_lora_rank=768,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    qk_nope_head_dim=192,
    v_head_dim=256,
    moe_intermediate_size=1536,
    n_routed_experts=64,
    n_shared_experts=1,
    num_experts_per_tok=4,
    first_k_dense_replace=1,
)
KIMI_K2 = shape(
    "kimi_k2",
    *(7168, 61, 64, 64, 18_432, 163_840),
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    qk_nope_head_dim=128,
    v_head_dim=128,
    moe_intermediate_size=2048,
    n_routed_experts=384,
    n_shared_experts=1,
    num_experts_per_tok=8,
    first_k_dense_replace=1,
)


@pytest.mark.parametrize(
    ("config", "billions", "active"),
    [
        (MIXTRAL, 46.7, 12.9),
        (shape("gemma2", 3584, 42, 16, 8, 14_336, 256_000), 9.24, 9.24),
        (shape("cohere", 8192, 40, 64, 64, 22_528, 256_000), 34.98, 34.98),
        (shape("phi3", 5120, 40, 40, 10, 17_920, 100_352), 14.66, 14.66),
        (shape("internlm2", 4096, 32, 32, 8, 14_336, 92_544), 7.74, 7.74),
        (shape("olmo3", 4096, 32, 32, 32, 11_008, 100_278), 7.30, 7.30),
        (shape("stablelm", 2560, 32, 32, 32, 6912, 50_304), 2.795, 2.795),
        (GLM_FLASH, 29.9, 3.9),
        (OPT, 6.66, 6.66),
        (GPT2, 0.124, 0.124),
        (QWEN_MOE, 14.3, 2.7),
        (MINIMAX, 228.7, 11.0),
        (KIMI_K2, 1026.0, 32.9),
        (case("deepseek-r1"), 671.0, 37.6),
        (case("gpt-oss-120b"), 116.8, 5.7),
        (case("qwen2-vl-7b"), 8.29, 7.62),  # 7.62 of text and 0.68 of vision
        (case("gemma-3-27b"), 27.4, 27.0),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_parameters(config: Config, billions: float, active: float) -> None:
    """As the models' cards have them."""
    weights = model_weights(config)
    assert weights.parameters == pytest.approx(billions * 1e9, rel=0.005)
    assert weights.active_parameters == pytest.approx(active * 1e9, rel=0.02)


@pytest.mark.parametrize(
    ("config", "per_prompt", "per_output"),
    [
        # 8.030e9 in all; a table and a head of 128,256 x 4,096 each, 0.525e9
        (LLAMA_8B, 6.980, 7.505),
        # 9.24e9, tied: the table of 256,000 x 3,584, 0.918e9, is the head, too
        (shape("gemma2", 3584, 42, 16, 8, 14_336, 256_000), 8.324, 9.242),
    ],
    ids=["two", "tied"],
)
def test_parameters_that_multiply(config: Config, per_prompt: float, per_output: float) -> None:
    """A row is taken from the table; the head meets the last token of a prompt only."""
    weights = model_weights(config)
    got = (weights.prompt_parameters, weights.output_parameters)
    assert got == pytest.approx((per_prompt * 1e9, per_output * 1e9), rel=0.0005)


def linear_bytes(scheme: Config, config: Config = LLAMA_8B) -> float:
    """What the linear layers take in a format, of one byte a weight."""
    half = model_weights(config)
    own = model_weights({**config, "quantization_config": scheme})
    linear = 2 * (3 * 4096 * 14_336 + 2 * 4096 * 5120) * 32  # in 16 bit
    assert half.all_gpus is not None
    assert own.all_gpus is not None
    return 2 * (linear - half.all_gpus + own.all_gpus) / linear


NVFP4 = {"weights": {"num_bits": 4, "type": "float", "group_size": 16}, "targets": ["Linear"]}
W4A16 = {"weights": {"num_bits": 4, "type": "int", "group_size": 128, "strategy": "group"}}
W8A8 = {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}


@pytest.mark.parametrize(
    ("scheme", "bytes_each"),
    [
        ({"quant_method": "fp8"}, 1),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 128**2),
        ({"quant_method": "awq", "group_size": 128}, 0.5 + 20 / 8 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, 1 + 24 / 8 / 32),
        ({"quant_method": "gptq", "bits": "4", "group_size": "64"}, 0.5 + 20 / 8 / 64),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 1),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5 + 1 / 16),
        ({"quant_method": "nvfp4"}, 0.5 + 1 / 16),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "nvfp4-pack-quantized",
                "config_groups": {"group_0": NVFP4},
            },
            0.5 + 1 / 16,
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": W4A16}},
            0.5 + 2 / 128,
        ),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": W8A8}}, 1.0008),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1.0008),
    ],
)
def test_formats(scheme: Config, bytes_each: float) -> None:
    """A linear layer's weights with their scales and zeros, in bytes each."""
    assert linear_bytes(scheme) == pytest.approx(bytes_each, rel=1e-3)


@pytest.mark.parametrize(
    "skipped",
    [
        {"modules_to_not_convert": ["self_attn"]},
        {"ignore": ["re:.*self_attn.*"]},
        {"exclude_modules": ["model.layers.*.self_attn*"]},
        {"ignore": [f"model.layers.{layer}.self_attn" for layer in range(32)]},
        {"quant_method": "gptq", "bits": 8, "group_size": 10**9, "dynamic": {"-:.*self_attn": {}}},
        {
            "quant_method": "auto-round",
            "bits": 8,
            "group_size": 10**9,
            "extra_config": {f"model.layers.{n}.self_attn": {"bits": 16} for n in range(32)},
        },
        {"ignore": [f"model.language_model.layers.{layer}.self_attn" for layer in range(32)]},
    ],
)
def test_modules_in_16_bit(skipped: Config) -> None:
    """Attention is 42 of 218 million weights of a layer here, however its name is written."""
    attention = 2 * 4096 * 5120 / (2 * 4096 * 5120 + 3 * 4096 * 14_336)
    got = linear_bytes({"quant_method": "modelopt", "quant_algo": "FP8", **skipped})
    assert got == pytest.approx(2 * attention + (1 - attention), rel=1e-3)


def test_modelopts_own_file(tmp_path: Path) -> None:
    """`hf_quant_config.json` beside a config.json that says nothing."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    own = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(own))
    weights = model_weights(model_config(tmp_path))
    assert of_one_gpu(weights) == pytest.approx(8.46, abs=0.01)  # 14.96 in 16 bit


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ({"quantization_config": {"quant_method": "aqlm"}}, "aqlm: its format is not known"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "lacks config_groups"),
        ({"quantization_config": {"quant_method": "gptq"}}, "how many bits"),
        ({"quantization_config": {"quant_method": "modelopt"}}, "quant_algo is not named"),
        ({"vocab_size": None}, "lacks vocab_size"),
        ({"intermediate_size": None}, "lacks intermediate_size"),
        ({"model_type": "mixtral"}, "lacks num_local_experts or"),
    ],
)
def test_unknown(edits: Config, said: str) -> None:
    """No figure, but the reason, and the flag that settles it."""
    weights = model_weights({**LLAMA_8B, **edits})
    assert weights.all_gpus is None
    assert weights.one_gpu is None
    assert weights.most_one_gpu is None
    assert said in weights.notes[0]
    assert "--weights" in weights.notes[0]


def test_text_part_only() -> None:
    """A tower that is not known: the text is counted, and how much more is open."""
    config = {**LLAMA_8B, "vision_config": {"model_type": "moonvit"}}
    weights = model_weights(config)
    assert of_one_gpu(weights) == pytest.approx(14.96, abs=0.01)
    assert weights.most_one_gpu is None
    assert "text part only: vision_config" in weights.notes[0]
    assert "--weights" in weights.notes[0]


@pytest.mark.parametrize(
    ("config", "parallel", "gib"),
    [
        (case("llama-3.1-8b"), Parallel(2), (14.96 + 0.0005) / 2 + 0.031),  # its rotary table
        # 16 layers each; embeddings on the first stage, as much for the head on the last
        (case("llama-3.1-8b"), Parallel(1, 2), 14.96 / 2 + 0.031),
        # tied: the last stage has the embeddings, too; 0.25 GiB of 14 layers are 1.22
        (case("qwen2.5-1.5b"), Parallel(1, 2), 1.22 + 0.434 + 0.008),
        # 4 KV heads on 8 GPUs: each is kept twice; experts whole or in parts are as large
        (case("qwen3-235b-fp8"), Parallel(8), 27.72),
        (case("qwen3-235b-fp8"), Parallel(8, expert=True), 27.72),
        # attention on each of 16, of 256 experts 16: 17.3 of attention, dense parts and head
        (case("deepseek-r1"), Parallel(1, data=16, expert=True), 57.77),
        (case("deepseek-r1"), Parallel(8, 2), 41.02),
    ],
)
def test_one_of_several_gpus(config: Config, parallel: Parallel, gib: float) -> None:
    """What the fullest one has."""
    assert of_one_gpu(model_weights(config, parallel)) == pytest.approx(gib, abs=0.02)


def test_files_of_known_size() -> None:
    """Their bytes are divided as the matrices are, and padded where those are."""
    weights = model_weights(case("gpt-oss-120b"))
    assert weights.in_files == pytest.approx(65.25e9, rel=0.002)  # as published
    got = weights.from_files(65.25e9, Parallel())
    assert of_one_gpu(got) == pytest.approx(64.6, abs=0.1)  # GiB, 6% more than in the files
    assert most_of_one_gpu(got) == pytest.approx(65.9, abs=0.1)


def test_a_given_size() -> None:
    """It is of all GPUs; where the matrices are not known, each has as much."""
    ways = Parallel(1, 2)
    tied = model_weights(case("qwen2.5-1.5b"), ways)
    assert tied.given(2 * (tied.all_gpus or 0), ways).one_gpu == 2 * (tied.one_gpu or 0)
    unknown = model_weights({**LLAMA_8B, "quantization_config": {"quant_method": "aqlm"}}, ways)
    assert unknown.given(10e9, ways) == Weights(10e9, 5e9, 10e9, 5e9)
    assert unknown.from_files(10e9, Parallel(2, 2, data=2)).one_gpu == 10e9 / 4


AWQ_72B = shape(
    "qwen2",
    *(8192, 80, 64, 8, 29_568, 152_064),
    quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128},
)


# the first of equal layers is not quantized, the others are
UNEVEN_FP8 = LLAMA_8B | {
    "intermediate_size": 14_464,
    "quantization_config": {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["model.layers.0"],
    },
}


@pytest.mark.parametrize(
    ("config", "parallel", "said"),
    [
        (case("qwen3-235b-fp8"), Parallel(4), ""),
        (case("qwen3-235b-fp8"), Parallel(8, expert=True), ""),
        (case("qwen3-235b-fp8"), Parallel(8), "192 outputs .*128 outputs; try --tensor-parallel 4"),
        (case("qwen3-235b-fp8"), Parallel(8), "or --enable-expert-parallel"),
        (UNEVEN_FP8, Parallel(2), "7,232 outputs .*128 outputs; try --tensor-parallel 1"),
        (AWQ_72B, Parallel(8), "mlp.down_proj has 3,696 inputs .* 128 inputs; try --tensor-par"),
        (AWQ_72B, Parallel(1), ""),
        (case("deepseek-r1"), Parallel(8), ""),
        (case("gpt-oss-120b"), Parallel(8), ""),  # padded
        (case("llama-3.1-8b"), Parallel(8), ""),
    ],
)
def test_shapes_that_vllm_refuses(config: Config, parallel: Parallel, said: str) -> None:
    """A quantized matrix whose share is no multiple of what has one scale."""
    fault = division_fault(config, parallel)
    assert bool(fault) == bool(said)
    assert re.search(said, fault)


def test_drafts() -> None:
    """An EAGLE head has one layer and a matrix of its own; what it shares is the range."""
    model = case("llama-3.1-8b")
    layer = 2 * (3 * 4096 * 14_336 + 2 * 4096 * 5120)
    table = 2 * 131_072 * 128
    eagle = {**model, "num_hidden_layers": 1, "architectures": ["LlamaForCausalLMEagle"]}
    got = draft_weights(eagle, model)
    assert got.all_gpus == pytest.approx(layer + table + 2 * 8192 * 4096, rel=1e-3)
    assert got.most_all_gpus is not None
    assert got.most_all_gpus - (got.all_gpus or 0) == pytest.approx(4 * 128_256 * 4096, rel=0.02)
    whole = case("qwen2.5-0.5b")
    assert draft_weights(whole, model).all_gpus == model_weights(whole).all_gpus


def test_a_log_with_eagle3() -> None:
    """Llama 3.1 8B and its head took 15.8114 GiB (vllm-project/speculators#166)."""
    model = case("llama-3.1-8b")
    head = {
        **model,
        "num_hidden_layers": 1,
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": 32_000,
    }
    both = of_one_gpu(model_weights(model)) + of_one_gpu(draft_weights(head, model))
    assert both == pytest.approx(15.8114, rel=1e-3)


def test_layers_of_multi_token_prediction() -> None:
    """DeepSeek R1 brings one, of 11.6 billion parameters without embeddings and head."""
    extra = extra_layers_weights(case("deepseek-r1"))
    assert extra.parameters == pytest.approx(11.6e9, rel=0.01)
    assert extra_layers_weights(case("llama-3.1-8b")).all_gpus == 0


VISION: Config = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "image_size": 336,
    "patch_size": 14,
}
LLAVA: Config = {
    "model_type": "llava_next",
    "text_config": {
        "model_type": "mistral",
        "intermediate_size": 14_336,
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 8,
        "sliding_window": None,
        "vocab_size": 32_064,
    },
    "vision_config": VISION,
}
GEMMA_4B: Config = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "image_size": 896,
        "patch_size": 14,
    },
}
INTERN: Config = {
    "model_type": "internvl_chat",
    "llm_config": {**case("qwen2.5-7b"), "vocab_size": 151_674},
    "vision_config": {**VISION, "model_type": "intern_vit_6b", "image_size": 448},
}
MISTRAL_SMALL: Config = {
    "model_type": "mistral3",
    "text_config": shape("mistral", 5120, 40, 32, 8, 32_768, 131_072, head_dim=128),
    "vision_config": {**VISION, "model_type": "pixtral"},
}


@pytest.mark.parametrize(
    ("config", "billions", "heads", "windows"),
    [
        (LLAVA, 7.55, (32, 8, 128), {0: 32}),
        (GEMMA_4B, 4.30, (8, 4, 256), {1024: 29, 0: 5}),
        (INTERN, 7.94, (28, 4, 128), {0: 28}),
        (MISTRAL_SMALL, 24.01, (32, 8, 128), {4096: 40}),  # the window that it does not deny
    ],
    ids=["llava", "gemma", "intern", "mistral"],
)
def test_multimodal_files(
    config: Config,
    billions: float,
    heads: tuple[int, int, int],
    windows: dict[int, int],
    tmp_path: Path,
) -> None:
    """What such a file leaves out is what Transformers fills in; the tower is counted."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = model_config(tmp_path)
    layers = model_shape(read)
    assert (layers.heads, layers.kv_heads, layers.head_size) == heads
    assert layers.layers_by_window == windows
    assert model_weights(read).parameters == pytest.approx(billions * 1e9, rel=0.002)


def test_a_text_part_without_its_family(tmp_path: Path) -> None:
    """It is the one that Transformers takes for the whole model's."""
    text = {name: value for name, value in GEMMA_4B["text_config"].items() if name != "model_type"}
    read = []
    for config in (GEMMA_4B, {**GEMMA_4B, "text_config": text}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        read.append(model_weights(model_config(tmp_path)))
    assert read[0] == read[1]
