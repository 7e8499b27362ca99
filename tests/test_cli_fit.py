"""What fits, against published figures, models' own files, and what vLLM itself reports."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import real_vllm

from harness.cli import main
from harness.errors import ConfigError
from harness.measure.memory_fit import (
    KvLayout,
    compute_tokens_per_s,
    decode_tokens_per_s,
    kv_layer_bytes,
)
from harness.server.model_config import kv_layout, kv_value_bytes, model_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from real_vllm import Served

    Config = dict[str, Any]

LLAMA_70B: Config = {
    "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "vocab_size": 128_256,
    "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28_672,
    "max_position_embeddings": 131_072,
}  # fmt: skip
MODEL_7B: Config = LLAMA_70B | {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
}  # fmt: skip
QWEN2_1_5B: Config = {
    "model_type": "qwen2", "hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12,
    "num_key_value_heads": 2, "intermediate_size": 8960, "vocab_size": 151_936,
    "tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 4096,
}  # fmt: skip
TINY: Config = {
    "model_type": "qwen2", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1,
}  # fmt: skip
GIB = 2**30
FOUR = ["--gpu", "h100", "--tensor-parallel", "4", "--weights", "140", "--reserve"]


def run(tmp_path: Path, config: Config, *options: str) -> int:
    """The command on this configuration."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    return main(["fit", "--config", str(tmp_path), *options])


@pytest.mark.parametrize(
    ("config", "options", "code", "lines"),
    [
        # 2 x 80 layers x 8 heads x 128 x 2 bytes = 327,680 a token; x 4,096 = 1.342e9
        (LLAMA_70B, ["--kv-memory", "80"], 0, [
            "KV cache of a token 327,680 bytes",
            "KV cache of 4,096 tokens 1.34 GB (1.25 GiB)",
            "users of 4,096 tokens at most 59",  # 80 / 1.342
        ]),
        (LLAMA_70B | {"num_key_value_heads": 64}, [], 0,
         ["KV cache of 4,096 tokens 10.74 GB (10.00 GiB)"]),
        (LLAMA_70B | {"num_key_value_heads": None}, [], 0,  # then all heads have their own
         ["KV cache of 4,096 tokens 10.74 GB (10.00 GiB)"]),
        (LLAMA_70B, ["--kv-memory", "80", "--kv-cache-dtype", "fp8"], 0,
         ["users of 4,096 tokens at most 119"]),
        # (320 - 140)e9 / 50 / 327,680 = 10,986.3; in blocks of 16: 34,332 // 50 = 686
        (LLAMA_70B, [*FOUR, "0", "--users", "50"], 0, [
            "memory 320.00 GB (298.02 GiB)", "KV cache 180.00 GB (167.64 GiB)",
            "context of 50 users at most 10,976 tokens in whole blocks, 10,986 without",
            "decode of one user, upper bound 95.7 tokens/s: TPOT at least 10.45 ms",
        ]),  # 4 x 3.35e12 / 140e9 = 95.7
        (LLAMA_70B, [*FOUR, "10", "--users", "50"], 0,
         ["reserve 40.00 GB (37.25 GiB)",
          "context of 50 users at most 8,544 tokens in whole blocks, 8,544 without"]),
        (LLAMA_70B, [*FOUR, "0", "--users", "100"], 0,
         ["weights and 100 such users 274.22 GB (255.39 GiB)"]),
        (LLAMA_70B, ["--gpu", "h100", "--weights", "140"], 99, [(
            "No: weights of 140.00 GB (130.39 GiB) and a reserve of 8.40 GB (7.82 GiB) do not fit "
            "in the 80.00 GB (74.51 GiB) of 1 GPU; try --tensor-parallel 2."
        )]),
        # 2 x 32 x 8 x 128 x 2 = 131,072 a token; x 2,048 x 200 = 53.69e9
        (MODEL_7B, ["--memory", "80", "--weights", "14", "--context", "2048", "--users", "200",
                    "--reserve", "8"], 0,
         ["weights and 200 such users 67.69 GB (63.04 GiB)"]),
        (MODEL_7B, ["--memory", "80", "--weights", "14", "--context", "2048", "--users", "200",
                    "--reserve", "16"], 99, ["users of 2,048 tokens at most 186"]),
        # 40 x 1.342 + 5.369 = 59.06; 40 x 1.342 + 21.47 = 75.16
        (LLAMA_70B, ["--kv-memory", "60", "--admit", "4096x40,16384"], 0, [(
            "Yes: 41 requests, 180,224 tokens, need 11,264 KV blocks, 59.06 GB (55.00 GiB); "
            "there are 11,444, 60.00 GB (55.88 GiB)."
        )]),
        (LLAMA_70B, ["--kv-memory", "60", "--admit", "4096x40,65536"], 99, [(
            "No: 41 requests, 229,376 tokens, need 14,336 KV blocks, 75.16 GB (70.00 GiB); "
            "there are 11,444, 60.00 GB (55.88 GiB)."
        )]),
        (LLAMA_70B, ["--kv-memory", "60", "--admit", "16x5", "--max-num-seqs", "4"], 99,
         [("No: 5 requests, 80 tokens, need 5 KV blocks, 0.03 GB (0.02 GiB); there are 11,444, "
           "60.00 GB (55.88 GiB), and 4 slots.")]),
        (LLAMA_70B, ["--kv-memory", "0.004"], 99, []),  # a block has 5,242,880 bytes
        (LLAMA_70B, ["--memory", "80", "--weights", "70", "--kv-memory", "20"], 99,
         [("No: weights of 70.00 GB (65.19 GiB) and a KV cache of 20.00 GB (18.63 GiB) do not fit "
           "in the 80.00 GB (74.51 GiB) of 1 GPU; try --tensor-parallel 2.")]),
        (LLAMA_70B, ["--users", "3"], 6, ["memory unknown", "weights 141.10 GB (131.41 GiB)"]),
        # a prompt: 989e12 x 8 / (2 x 70.55e9) = 56,072 tokens/s
        (LLAMA_70B, ["--gpu", "h100", "--tensor-parallel", "4", "--gpus", "4"], 0, [
            "4 replicas of 1 GPU none 0 - 564.4",
            "2 replicas of 2 GPUs 2 94 47.5 282.2",
            "1 replica of 4 GPUs 108 5,059 95.0 141.1",
        ]),
        (LLAMA_70B, ["--gpu", "h100", "--tensor-parallel", "8"], 0, [
            "prefill, upper bound 56,072 tokens/s: TTFT of 4,096 tokens at least 73.0 ms",
            ("Weights: shape. Reserve: 8% of the memory and 2 GB of each GPU, for activations, "
             "CUDA graphs, NCCL and what vLLM leaves free."),
        ]),
    ],
)  # fmt: skip
def test_known_answers(
    config: Config, options: list[str], code: int, lines: list[str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """As printed, and the exit code that says whether it fits."""
    assert run(tmp_path, config, *options) == code
    shown = [re.sub(" +", " ", line) for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line not in shown] == []


def test_a_whole_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has the figures that the text shows; the envelope ends at the model's limit."""
    out = tmp_path / "fit.json"
    options = [
        "--gpu",
        "h100",
        "--tensor-parallel",
        "4",
        "--max-num-seqs",
        "64",
        "--json",
        str(out),
    ]
    assert run(tmp_path, LLAMA_70B | {"max_position_embeddings": 8192}, *options) == 0
    got = json.loads(out.read_text())
    # 320 - 141.1 - 0.08 x 320 - 8 = 145.3e9, / 5,242,880 = 27,712 blocks of 16 tokens
    assert (got["fits"], got["kv_blocks"], got["kv_tokens"]) == (True, 27_712, 443_392)
    rows = [(row["context_tokens"], row["users"]) for row in got["envelope"]]
    assert rows == [(1024, 64), (2048, 64), (4096, 64), (8192, 54)]  # slots, then 27,712 // 512
    # 4 x 3.35e12 / (141.1e9 + 54 x 2.684e9) = 46.8 tokens/s of each
    last = ["8,192", "54", "2.68", "2,530", "46.8", "############"]
    assert last in [line.split() for line in capsys.readouterr().out.splitlines()]


DEEPSEEK_V3: Config = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "intermediate_size": 18_432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "vocab_size": 129_280, "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip
QWEN3_30B: Config = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "head_dim": 128,
    "num_attention_heads": 32, "num_key_value_heads": 4, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "vocab_size": 151_936,
}  # fmt: skip
MIXTRAL: Config = {
    "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "sliding_window": None,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14_336,
    "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32_000,
}  # fmt: skip
GEMMA3_27B: Config = {
    "model_type": "gemma3_text", "hidden_size": 5376, "num_hidden_layers": 62, "head_dim": 128,
    "num_attention_heads": 32, "num_key_value_heads": 16, "intermediate_size": 21_504,
    "sliding_window": 1024, "vocab_size": 262_208,
}  # fmt: skip
GPT_OSS: Config = {
    "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24, "head_dim": 64,
    "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 2880,
    "num_local_experts": 32, "num_experts_per_tok": 4, "vocab_size": 201_088,
    "sliding_window": 128, "quantization_config": {"quant_method": "mxfp4"},
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "published", "token_bytes", "windows"),
    [
        # billions of parameters, and of those that are active, as the models' cards have them
        (LLAMA_70B, ("70.6", "70.6"), 327_680, {0: 80}),
        (QWEN2_1_5B, ("1.5", "1.5"), 28_672, {0: 28}),
        (MIXTRAL, ("46.7", "12.9"), 131_072, {0: 32}),
        (QWEN3_30B, ("30.5", "3.4"), 98_304, {0: 48}),  # 2 x 4 x 128 x 2 bytes x 48
        (DEEPSEEK_V3, ("671.0", "37.6"), 70_272, {0: 61}),  # (512 + 64) x 2 bytes x 61
        (GEMMA3_27B, ("27.0", "27.0"), 507_904, {1024: 52, 0: 10}),
        (GPT_OSS, ("20.9", "4.2"), 49_152, {128: 12, 0: 12}),  # its card counts no embeddings: 3.6
        (LLAMA_70B | {"model_type": "mistral", "sliding_window": 4096}, ("70.6", "70.6"), 327_680,
         {4096: 80}),
        (GPT_OSS | {"layer_types": None}, ("20.9", "4.2"), 49_152, {128: 12, 0: 12}),
    ],
)  # fmt: skip
def test_models(
    config: Config, published: tuple[str, str], token_bytes: int, windows: dict[int, int]
) -> None:
    """Parameters as published, and the KV cache of a token as long as no window is full."""
    parameters, active, _ = model_weights(config)
    layout = kv_layout(config, 2)
    assert (f"{parameters / 1e9:.1f}", f"{active / 1e9:.1f}") == published
    assert (layout.read_bytes(1), layout.layers_by_window) == (token_bytes, windows)


def test_weights_in_bits() -> None:
    """16 bit unless quantized; embeddings stay in 16; NaN where the format says no width."""
    embeddings = 2 * 128_256 * 8192
    linear = model_weights(LLAMA_70B)[0] - embeddings
    for scheme, want in (
        (None, 2 * linear), ({"quant_method": "fp8"}, linear),
        ({"quant_method": "gptq", "bits": 8}, linear), ({"quant_method": "awq"}, linear / 2),
    ):  # fmt: skip
        assert (
            model_weights(LLAMA_70B | {"quantization_config": scheme})[2] == want + 2 * embeddings
        )
    assert str(model_weights(GPT_OSS)[2]) == "nan"


@pytest.mark.parametrize(
    ("flags", "scheme", "want"),
    [
        ({}, None, 2),
        ({"kv_cache_dtype": "auto", "dtype": "float32"}, None, 4),
        ({"kv_cache_dtype": "fp8_e4m3"}, None, 1),
        ({}, {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, 1),
        ({}, {"kv_cache_scheme": None}, 2),
        ({"kv_cache_dtype": "bfloat16"}, {"kv_cache_quant_algo": "FP8"}, 2),
    ],
)
def test_bytes_of_a_value(flags: dict[str, str], scheme: Config | None, want: int) -> None:
    """What vLLM's `auto` means depends on the model's quantization, not on its file's dtype."""
    assert kv_value_bytes({"quantization_config": scheme, "torch_dtype": "float32"}, flags) == want


@pytest.mark.parametrize(
    ("config", "gpus", "want"),
    [
        (LLAMA_70B, 8, 327_680),  # one head each
        (LLAMA_70B, 16, 655_360),  # each head twice
        (DEEPSEEK_V3, 4, 281_088),  # the latent vector on each
    ],
)
def test_shards(config: Config, gpus: int, want: int) -> None:
    """All GPUs together hold more than one copy where heads do not suffice."""
    assert kv_layout(config, 2, gpus).read_bytes(1) == want


def test_sliding_windows() -> None:
    """Groups as in vLLM: one of 10 layers for the whole context, six for 52 with a window."""
    layout = kv_layout(GEMMA3_27B, 2)  # 8,192 bytes in a layer
    assert (layout.layers_per_group, layout.block_bytes) == (10, 16 * 8192 * 10)
    assert layout.request_blocks(512) == 7 * 32
    # 65 blocks hold a window of 1,024 tokens that begins anywhere
    assert layout.request_blocks(131_072) == 8192 + 6 * 65
    assert layout.read_bytes(131_072) == 8192 * (10 * 131_072 + 52 * 1024)
    assert layout.users_in(10_000, 131_072, slots=4) == 1
    assert layout.context_in(10_000, 1) == (10_000 - 6 * 65) * 16
    assert KvLayout(kv_layer_bytes(1, 1, 2), {64: 2}).context_in(100, 10) == 100 * 16  # no limit


@pytest.mark.parametrize(
    ("windows", "group", "long", "short"),
    [
        ({0: 10, 1024: 52}, 10, 9350, 1094),  # Gemma 3 27B: 8,192 + 6 x 193 blocks
        ({0: 12, 128: 12}, 12, 8329, 553),  # gpt-oss 20B
        ({0: 12, 128: 13}, 13, 8329, 553),  # one layer of padding
        ({0: 20, 64: 30}, 20, 8458, 586),  # two groups of 20 for 30 layers
        ({0: 3, 64: 7}, 3, 8591, 623),
    ],
)
def test_groups_of_layers(windows: dict[int, int], group: int, long: int, short: int) -> None:
    """As vLLM 0.32's own functions gave them: 131,072 tokens, 2,048 in a step; 8,192 and 512."""
    layout = KvLayout(1, windows, 16, 2048)
    assert layout.layers_per_group == group
    assert layout.request_blocks(131_072) == long
    assert replace(layout, step_tokens=512).request_blocks(8192) == short


def test_rooflines() -> None:
    """A step of 50 users reads the weights once and each one's context."""
    assert decode_tokens_per_s(4e12, 140e9, 50 * 1.2e9) == 20
    assert compute_tokens_per_s(1e15, 50e9) == 10_000


# What `vllm:cache_config_info` said: num_gpu_blocks, kv_cache_size_tokens. vLLM on a CPU with
# VLLM_CPU_KVCACHE_SPACE=1 (GiB), and vLLM 0.26 on an H200 with --kv-cache-memory-bytes 2000000000.
@pytest.mark.parametrize(
    ("edits", "value_bytes", "block", "pool_bytes", "length", "step", "blocks", "tokens"),
    [
        ({}, 2, 32, GIB, 2048, 1, 65_536, 2_097_152),
        ({}, 4, 16, GIB, 2048, 1, 65_536, 1_048_576),  # --dtype float32
        ({"num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 64, "model_type": "gemma3_text", "sliding_window": 256},
         2, 32, GIB, 8192, 512, 65_536, 1_322_342),
        (QWEN2_1_5B, 2, 16, 2_000_000_000, 4096, 1, 4359, 69_744),
        (QWEN2_1_5B, 1, 16, 2_000_000_000, 4096, 1, 8719, 139_504),
    ],
)  # fmt: skip
def test_exactly_what_vllm_said(
    edits: Config, value_bytes: int, block: int, pool_bytes: int, length: int, step: int,
    blocks: int, tokens: int,
) -> None:  # fmt: skip
    """Blocks and tokens of recorded starts."""
    layout = replace(kv_layout(TINY | edits, value_bytes, 1, block), step_tokens=step)
    found = pool_bytes // layout.block_bytes
    assert (found, found * length // layout.request_blocks(length)) == (blocks, tokens)


@pytest.mark.vllm
def test_a_real_vllm(
    vllm: Callable[[str], Served], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its KV cache is what its configuration and its memory give, to the block."""
    out, config = tmp_path / "fit.json", ["--config", str(real_vllm.HOME / "tiny")]
    assert main(["fit", vllm("16 slots").url, *config, "--json", str(out)]) == 0
    served = json.loads(out.read_text())
    alone = [*config, "--kv-memory", str(GIB / 1e9), "--block-size", str(served["block_tokens"])]
    assert main(["fit", *alone, "--json", str(out)]) == 0
    assert {**json.loads(out.read_text()), "max_model_len": served["max_model_len"]} == served
    assert main(["fit", vllm("16 slots").url, "--users", "4"]) == 0  # without a configuration
    assert "KV cache                        unknown" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("edits", "options", "message"),
    [
        ({}, ["--gpu", "h10"], "--gpu is 'h10': expected one of l4, .*; try --gpu h100"),
        ({}, ["--tensor-parallel", "3"], "64 attention and 8 KV heads: .* try --tensor-parallel 2"),
        ({}, ["--context", "131073"], "131,073 tokens is above the limit of 131,072: .*131072"),
        ({}, ["--admit", "16,200000x2"], "200,000 tokens is above the limit"),
        ({}, ["--admit", "4096x"], "--admit is '': expected a whole number from 1"),
        ({}, ["--admit", "x4"], "--admit is '': expected a whole number from 1"),
        ({}, ["--reserve", "8GB"], "--reserve is '8GB': expected a number above 0"),
        ({"model_type": "mamba2"}, [], "model_type 'mamba2', whose .*: expected one of arcee"),
        ({"num_hidden_layers": None}, [], "lacks num_hidden_layers: expected"),
        ({"model_type": "qwen2", "use_sliding_window": True}, [], "28 as max_window_layers"),
        ({"layer_types": ["linear_attention", "full_attention"] * 40}, [], "layers of linear_a"),
        ({"layer_types": ["sliding_attention"] * 80}, [], "lacks sliding_win"),  # of which window?
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, [], "lacks qk_rope_head_dim, "),
        ({"model_type": "deepseek_v3", "index_topk": 2048}, [], "has index_topk"),
        ({}, ["--config", "/nowhere"], "--config is /nowhere: expected a Hugging Face config.json"),
    ],
)
def test_bad_input(
    edits: Config, options: list[str], message: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """One sentence; what is not understood is refused, not guessed."""
    assert run(tmp_path, LLAMA_70B | edits, *options) == 2
    assert re.search(message, capsys.readouterr().err)


def test_gpus_of_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Refused before the server is asked: its cache says nothing of another split."""
    assert main(["fit", "http://127.0.0.1:9", "--gpus", "4"]) == 2
    assert "--gpus is given without --config" in capsys.readouterr().err


def test_files_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their size counts, and a multimodal model's text part is the model."""
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(b"x" * 10**7)
    assert run(tmp_path, {"model_type": "qwen2_5_vl", "text_config": QWEN2_1_5B}) == 0
    assert "weights                         0.01 GB" in capsys.readouterr().out
    assert main(["fit"]) == 2
    assert "--config is missing" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="lacks hidden_size"):
        kv_layout({"model_type": "llama"}, 2)
