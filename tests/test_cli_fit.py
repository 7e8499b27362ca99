"""What fits, against published figures, models' own files, and what vLLM itself reports."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import real_vllm

from harness.cli import main
from harness.cli.app import parser
from harness.lifecycle.deployments import read_deployments
from harness.lifecycle.vllm_start import StartOptions, cpu_dtype
from harness.server import probe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Config = dict[str, Any]

LLAMA_70B: Config = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "vocab_size": 128_256,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28_672,
    "max_position_embeddings": 131_072,
}
MODEL_7B: Config = LLAMA_70B | {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
LLAMA_8B: Config = LLAMA_70B | {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 14_336,
}
BLOCK_FP8: Config = {  # Qwen3 235B
    "model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 94, "head_dim": 128,
    "num_attention_heads": 64, "num_key_value_heads": 4, "intermediate_size": 12_288,
    "moe_intermediate_size": 1536, "num_experts": 128, "num_experts_per_tok": 8,
    "vocab_size": 151_936, "max_position_embeddings": 262_144,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
UNKNOWN_WEIGHTS: Config = LLAMA_8B | {"quantization_config": {"quant_method": "new"}}
QWEN2_1_5B: Config = {
    "model_type": "qwen2",
    "hidden_size": 1536,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "intermediate_size": 8960,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "sliding_window": 4096,
}
LATENT: Config = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
TINY: Config = {
    "model_type": "qwen2",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
GIB = 2**30
# four GPUs of 80 GB, as common texts have them; a driver reports 79.19 GiB of an H100
H100 = ["--gpu", "h100", "--memory", "80"]
FOUR = [*H100, "--tensor-parallel", "4", "--weights", "140", "--reserve"]


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
        (LLAMA_70B | {"num_key_value_heads": 64}, [], 6,  # no memory is known, so it is no yes
         ["KV cache of 4,096 tokens 10.74 GB (10.00 GiB)"]),
        (LLAMA_70B | {"num_key_value_heads": None}, [], 6,  # then all heads have their own
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
        (LLAMA_70B, [*H100, "--weights", "140"], 99, [(
            "No: weights of 140.00 GB (130.39 GiB) and a reserve of 1.19 GB (1.11 GiB) do not fit "
            "in the 73.60 GB (68.55 GiB) that vLLM takes (92%) of 1 GPU; try --tensor-parallel 2."
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
         [("No: weights of 70.00 GB (65.19 GiB), a KV cache of 20.00 GB (18.63 GiB) and a reserve "
           "of 1.19 GB (1.11 GiB) do not fit in the 80.00 GB (74.51 GiB) of 1 GPU; try "
           "--tensor-parallel 2.")]),
        # 16.09 and 68.9 of 85.03 GB leave 0.04, less than any start keeps
        (LLAMA_8B, ["--gpu", "h100", "--kv-memory", "68.9"], 99, []),
        (LLAMA_8B, ["--gpu", "h100", "--kv-memory", "67"], 0, []),
        (UNKNOWN_WEIGHTS, ["--gpu", "l4", "--kv-memory", "100"], 99,
         [("No: a KV cache of 100.00 GB (93.13 GiB) and a reserve of 0.40 GB (0.37 GiB) do not fit "
           "in the 23.65 GB (22.03 GiB) of 1 GPU; try less --kv-memory.")]),
        (LLAMA_8B, ["--gpu", "l4", "--reserve", "24"], 99,
         [("No: weights of 16.09 GB (14.99 GiB) and a reserve of 24.00 GB (22.35 GiB) do not fit "
           "in the 23.65 GB (22.03 GiB) of 1 GPU; try a GPU with more memory.")]),
        # 78.23 less 73 and the likely 5.3 is nothing, not less
        (LLAMA_8B, ["--gpu", "h100", "--weights", "73"], 6,
         ["KV cache 0.00 GB (0.00 GiB), or 0.0 to 4.0 GB"]),
        (LLAMA_8B, ["--kv-memory", "1", "--context", "16"], 0,
         [("Yes: 1 request, 16 tokens, needs 1 KV block, 0.00 GB (0.00 GiB); there are 476, "
           "1.00 GB (0.93 GiB).")]),
        # one on each engine, be they named apart or together
        (LLAMA_8B, ["--kv-memory", "0.6", "--data-parallel", "2", "--admit", "4096,4096"], 0, []),
        (LLAMA_8B, ["--kv-memory", "0.6", "--data-parallel", "2", "--admit", "4096x2"], 0, []),
        (LLAMA_8B, ["--kv-memory", "0.6", "--data-parallel", "2", "--admit", "4096x3"], 99, []),
        (LLAMA_70B, ["--users", "3"], 6, ["memory unknown", "weights 141.14 GB (131.45 GiB)", (
            "Unknown: 3 requests, 12,288 tokens, need 768 KV blocks, 4.03 GB (3.75 GiB); how many "
            "there are is not known, because the memory of a GPU is not; try --gpu, or --memory "
            "or --kv-memory, in GB."
        )]),
        # a prompt: 989e12 x 8 / (2 x 68.45e9) = 57,792 tokens/s
        # 92% of 2 x 80 less 141.1 and 2 x 5.8: -5.6; of 4 x 80: 294.4 - 141.1 - 4 x 5.8 = 130
        (LLAMA_70B, [*H100, "--tensor-parallel", "4", "--gpus", "4"], 0, [
            "4 replicas of 1 GPU none 0 - 564.6",
            "2 replicas of 2 GPUs none 0 - 282.4",
            "1 replica of 4 GPUs 97 4,789 94.9 141.2",
        ]),
        (LLAMA_70B, ["--gpu", "h100", "--tensor-parallel", "8"], 0, [
            "memory 680.24 GB (633.52 GiB)", "of which vLLM takes 625.82 GB (582.84 GiB)",
            "prefill, upper bound 57,792 tokens/s: TTFT of 4,096 tokens at least 70.9 ms",
            ("Weights: shape. Reserve: as start logs of vLLM show it, for activations, the "
             "sampler, CUDA graphs and NCCL."),
        ]),
        # a share of a memory that is known: 0.5 x 100 - 10 - 5 = 35 GB; x 4 without the share
        (LLAMA_70B, ["--memory", "100", "--weights", "10", "--reserve", "5",
                     "--gpu-memory-utilization", "0.5"], 0, ["KV cache 35.00 GB (32.60 GiB)"]),
        # one request of the length that the server promises has to fit, or vLLM does not start
        (LLAMA_70B, ["--kv-memory", "20", "--max-model-len", "65536"], 99, [(
            "No: one request of --max-model-len, 65,536 tokens, needs 4,096 KV blocks, 21.47 GB "
            "(20.00 GiB); there are 3,814, 20.00 GB (18.63 GiB), and vLLM does not start without "
            "room for it; try --max-model-len 61008."
        )]),
        # 3,814 blocks hold 61,008 tokens beside the one that vLLM holds back
        (LLAMA_70B, ["--kv-memory", "20"], 0,
         ["longest --max-model-len 61,008 tokens: vLLM does not start with more"]),
        # no context above the model's limit, though the KV cache has 1.2 million tokens
        (LLAMA_70B, ["--kv-memory", "400", "--users", "2"], 0,
         ["context of 2 users at most 131,072 tokens in whole blocks, 131,072 without"]),
        # 92% of 23.65 GB less 16.09 GB: 5.3 GB with the least that vLLM keeps, 1.9 with the most
        (LLAMA_8B, ["--gpu", "l4", "--context", "20000"], 6, [(
            "Unknown: 1 request, 20,000 tokens, needs 1,250 KV blocks, 2.62 GB (2.44 GiB); there "
            "are 914 to 2,510, as vLLM keeps 0.4 to 3.8 GB of each GPU for itself; try --reserve "
            "or --kv-memory, in GB, as a start showed it."
        )]),
        (LLAMA_8B, ["--gpu", "l4", "--data-parallel", "2", "--users", "5"], 0,
         ["users of 4,096 tokens at most 14"]),
        (BLOCK_FP8, ["--gpu", "h100", "--tensor-parallel", "8"], 99, [(
            "No: mlp.experts.gate_proj has 192 outputs on each GPU: vLLM refuses that for fp8 "
            "weights, whose scales are of 128 outputs; try --tensor-parallel 4 or "
            "--enable-expert-parallel."
        )]),
        (BLOCK_FP8, ["--gpu", "h100", "--tensor-parallel", "8", "--enable-expert-parallel"], 0, []),
    ],
)  # fmt: skip
def test_known_answers(
    config: Config,
    options: list[str],
    code: int,
    lines: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As printed, and the exit code that says whether it fits."""
    assert run(tmp_path, config, *options) == code
    printed = capsys.readouterr().out
    shown = re.sub(" +", " ", printed).splitlines()
    assert [line for line in lines if line not in shown] == []


@pytest.mark.parametrize(
    ("config", "options", "users"),
    [
        # eight GPUs do not divide 12 heads; alone, 36,112 blocks hold 141 users of 256 each
        (QWEN2_1_5B, ["--gpu", "l4", "--gpus", "8", "--reserve", "4"],
         {1: 8 * 141, 2: 4 * 308, 4: 2 * 321}),
        # weights do not fit in one or two; of eight, vLLM refuses the blocks
        (BLOCK_FP8, ["--gpu", "h100", "--gpus", "8"], {1: 0, 2: 0, 4: 2 * 62, 8: 0}),
        # vLLM does not start with more than a GPU holds
        (LLAMA_8B, ["--gpu", "l4", "--gpus", "2", "--max-model-len", "131072"], {1: 0, 2: 44}),
    ],
)  # fmt: skip
def test_replicas(
    config: Config,
    options: list[str],
    users: dict[int, int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Users of replicas of so many GPUs each; a replica that does not start has none."""
    out = tmp_path / "fit.json"
    run(tmp_path, config, *options, "--json", str(out))
    capsys.readouterr()
    splits = json.loads(out.read_text())["splits"]
    got = {split["gpus"]: split["users"] for split in splits}
    assert got == users


def test_a_whole_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has the figures that the text shows; the envelope ends at the model's limit."""
    out = tmp_path / "fit.json"
    options = [*FOUR, "8.4", "--max-num-seqs", "64", "--json", str(out)]
    assert run(tmp_path, LLAMA_70B | {"max_position_embeddings": 8192}, *options) == 0
    got = json.loads(out.read_text())
    # 320 - 140 - 4 x 8.4 = 146.4e9, / 5,242,880 = 27,923 blocks of 16 tokens
    assert (got["fits"], got["kv_blocks"], got["kv_tokens"]) == (True, 27_923, 446_768)
    rows = [(row["context_tokens"], row["users"]) for row in got["envelope"]]
    assert rows == [(1024, 64), (2048, 64), (4096, 64), (8192, 54)]  # slots, then 27,923 // 512
    # 4 x 3.35e12 / (140e9 + 54 x 2.684e9) = 47.0 tokens/s of each
    last = ["8,192", "54", "2.68", "2,539", "47.0", "############"]
    assert last in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_unknown_is_null(tmp_path: Path) -> None:
    """What follows from something unknown is null in JSON, and the exit code is 6, not 0."""
    out = tmp_path / "fit.json"
    unknown = MODEL_7B | {"quantization_config": {"quant_method": "new"}}
    assert run(tmp_path, unknown, "--gpu", "h100", "--json", str(out)) == 6
    got = json.loads(out.read_text())
    wanted = ("fits", "weight_bytes", "kv_blocks", "kv_tokens", "kv_concurrency")
    assert [got[name] for name in (*wanted, "context_in_blocks")] == [None] * 6
    assert [row["users"] for row in got["envelope"]] == [None] * 8
    assert got["why"] == "weights"


def test_prefill_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes, times and the choice, as JSON and in words."""
    out = tmp_path / "fit.json"
    options = ["--gpu", "h100", "--gpus", "8", "--prefill-apart", "3072:512", "--link", "25"]
    assert run(tmp_path, LLAMA_8B, *options, "--json", str(out)) == 0
    got = json.loads(out.read_text())["prefill_apart"]
    # 3,072 x 131,072 bytes; / 25e9; 3,072 tokens of 13.96e9 FLOP at 989e12 FLOP/s
    assert (got["kv_bytes"], f"{got['transfer_ms']:.2f}") == (402_653_184, "16.11")
    assert f"{got['prefill_ms']:.1f}" == "43.4"
    assert (got["choose"], got["chosen_prefill"], got["chosen_decode"]) == ("apart", 3, 5)
    shown = re.sub(" +", " ", capsys.readouterr().out)
    assert "KV cache to move per request 0.40 GB (0.38 GiB)" in shown
    assert "Choose 3 for prefill and 5 for decoding: at least 90% of the requests/s" in shown


APART = ["--gpu", "h100", "--gpus", "8", "--prefill-apart"]


@pytest.mark.parametrize(
    ("lengths", "slos", "choose", "best", "words"),
    [
        # a tight TTFT takes more GPUs for prefill, a tight ITL more for decoding
        ("3072:512", ["ttft_p95=250ms"], "open", (4, 4), "Open: 4 for prefill and 4"),
        ("3072:512", ["itl_p95=12ms"], "open", (2, 6), "the requests/s of all together within"),
        ("256:512", ["ttft_p95=500ms"], "together", (2, 6), "Choose all together: 2 for prefill"),
        ("3072:40", ["ttft_p95=2s", "itl_p95=40ms"], "apart", (7, 1), "Choose 7 for prefill and 1"),
        (
            "3072:512",
            ["itl_p95=1ms", "ttft_p95=90ms"],
            "none",
            None,
            "Choose none: no layout keeps itl_p95=1ms and ttft_p95=90ms.",
        ),
    ],
)
def test_prefill_apart_within_slos(
    lengths: str,
    slos: list[str],
    choose: str,
    best: tuple[int, int] | None,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is chosen, and the layout with the most users; the text has the same interval."""
    out = tmp_path / "fit.json"
    given = [word for slo in slos for word in ("--slo", slo)]
    assert run(tmp_path, LLAMA_8B, *APART, lengths, *given, "--json", str(out)) == 0
    got = json.loads(out.read_text())["prefill_apart"]
    shown = capsys.readouterr().out
    gain = got["gain"]
    assert got["choose"] == choose
    assert (gain and (gain["prefill"], gain["decode"])) == best
    assert words in shown
    assert got["sentence"] in shown
    if gain:
        low, high = gain["ci95"]
        assert low <= gain["likely"] <= high
        assert f"{gain['likely']:.2f} times (95% interval {low:.2f} to {high:.2f})" in shown


def test_prefill_apart_or_not_is_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Then the file of deployments and the command are those of `vary`."""
    out = tmp_path / "fit.json"
    options = ["--tensor-parallel", "2", "--kv-memory", "8", "--slo", "itl_p95=12ms"]
    run(tmp_path, LLAMA_8B, *APART, "3072:512", *options, "--json", str(out))
    got = json.loads(out.read_text())["prefill_apart"]
    assert got["choose"] == "open"
    measure = got["measure"]
    file = tmp_path / measure["deployments"]
    file.write_text(measure["tables"])
    found = read_deployments(file, StartOptions())
    gpus = {name: [place.gpus for place in one.places] for name, one in found.items()}
    pairs = ["0,1", "2,3", "4,5", "6,7"]
    assert gpus == {"together": pairs, "apart": pairs}
    assert len(found["apart"].of_role("prefill")) == got["gain"]["prefill"]
    words = shlex.split(measure["command"])
    args = parser().parse_args(words[1:])
    assert args.start_args == ("--tensor-parallel-size=2", "--kv-cache-memory-bytes=8000000000")
    assert words[words.index("--") :] == [
        "--", "knee", "--prompt-tokens", "3072", "--output-tokens", "512", "--slo", "itl_p95=12ms",
    ]  # fmt: skip
    assert measure["command"] in capsys.readouterr().out


PHI3_SHAPE: Config = {  # a window of 255, that Phi 3 has in each layer
    "model_type": "phi3",
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 255,
    "intermediate_size": 1024,
    "vocab_size": 32_000,
    "max_position_embeddings": 2048,
}


def capabilities(max_model_len: int, **labels: str) -> probe.Capabilities:
    """What a probe finds of a server of 8,192 blocks of 128 tokens."""
    labels |= {"block_size": "128", "num_gpu_blocks": "8192", "cache_dtype": "auto"}
    return probe.Capabilities(
        url="http://127.0.0.1:8000",
        api="completions",
        model="m",
        models=("m",),
        max_model_len=max_model_len,
        version="0.32.0",
        fixed_length=True,
        continuous_usage=True,
        final_usage=True,
        tokenize=True,
        metrics=True,
        cache=probe.cache_summary([labels]),
    )


@pytest.mark.parametrize(
    ("said", "tokens", "concurrency", "differs", "users"),
    [
        ("986895", 986_895, 481.88, False, 481),  # 8,192 blocks, 17 of a request
        ("900000", 900_000, 439.45, True, 439),  # ours is not this server's: its own is taken
        (None, 986_895, 481.88, None, 481),  # an old server, which says blocks only
    ],
)
def test_a_running_server(
    said: str | None,
    tokens: int,
    concurrency: float,
    differs: bool | None,
    users: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its own figures beside ours; where they differ by more than 1%, its own are the answer."""
    found = capabilities(2048)
    if said:
        own = {"kv_cache_size_tokens": said, "kv_cache_max_concurrency": str(int(said) / 2048)}
        found = capabilities(2048, **own)
    monkeypatch.setattr(probe, "probe", lambda *_: found)
    (tmp_path / "config.json").write_text(json.dumps(PHI3_SHAPE))
    out = tmp_path / "fit.json"
    options = ["http://127.0.0.1:8000", "--config", str(tmp_path), "--context", "2048"]
    assert main(["fit", *options, "--json", str(out)]) == 0
    got = json.loads(out.read_text())
    assert (got["kv_tokens"], round(got["kv_concurrency"], 2)) == (tokens, concurrency)
    assert got["user"]["users"] == users
    assert (got["server"] or {"differs": None})["differs"] is differs
    page = capsys.readouterr().out
    assert ("more than 1% off: the server's are used" in page) is bool(differs)


@pytest.mark.parametrize(
    ("found", "options", "code", "shown"),
    [
        (
            replace(capabilities(131_072), flags={"max_num_seqs": 4}),
            ["--users", "5"],
            99,
            "and 4 slots",
        ),
        (
            replace(capabilities(131_072), flags={"max_num_seqs": 4}),
            ["--users", "5", "--max-num-seqs", "8"],
            0,
            "and 8 slots",
        ),
        # of the server's KV cache, not of what the GPU would have; and it is another GPU
        (
            capabilities(131_072),
            ["--users", "10", "--gpu", "h100"],
            0,
            (
                "context of 10 users             at most 104,832 tokens in whole blocks, "
                "104,857 without"
            ),
        ),
        (capabilities(131_072), ["--gpu", "h100"], 0, "reserve                         unknown"),
        (
            capabilities(131_072, kv_cache_size_tokens="1048576", kv_cache_max_concurrency="nan"),
            [],
            0,
            "the server's own figures        1,048,576 tokens, 8.00 requests",
        ),
        (
            capabilities(131_072, kv_cache_size_tokens="9" * 5000),
            [],
            0,
            "1,048,576 in 8,192 blocks",
        ),
    ],
)
def test_what_a_running_server_says(
    found: probe.Capabilities,
    options: list[str],
    code: int,
    shown: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Llama 8B on 8,192 blocks of 128 tokens: 1,048,576 tokens, 137 GB."""
    monkeypatch.setattr(probe, "probe", lambda *_: found)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    where = ["http://127.0.0.1:8000", "--config", str(tmp_path)]
    assert main(["fit", *where, *options]) == code
    assert shown in capsys.readouterr().out


def test_blocks_of_no_known_size(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a configuration there are blocks and tokens, and no GB."""
    cache = {"engines": 1, "block_size": 128, "kv_blocks": 9}
    found = replace(capabilities(131_072), cache=cache)
    monkeypatch.setattr(probe, "probe", lambda *_: found)
    asked = ["--context", "100", "--max-model-len", "100000"]
    assert main(["fit", "http://127.0.0.1:8000", *asked]) == 99
    assert capsys.readouterr().out.startswith(
        "No: one request of --max-model-len, 100,000 tokens, needs 782 KV blocks; there are 9, and "
        "vLLM does not start without room for it; try --max-model-len 1024.\n"
    )


def test_batches_of_a_running_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own figure tells whether one batch is in flight, as on a CPU, or two."""
    (tmp_path / "config.json").write_text(
        json.dumps(PHI3_SHAPE | {"max_position_embeddings": 8192})
    )
    for batches, blocks in ((2, 34 + 1), (1, 18 + 1)):  # ceil((254 + 2,048 x batches) / 128) + 1
        tokens = 8192 * 8192 // blocks
        found = capabilities(8192, kv_cache_size_tokens=str(tokens))
        monkeypatch.setattr(probe, "probe", lambda *_, found=found: found)
        out = tmp_path / "fit.json"
        options = ["http://127.0.0.1:8000", "--config", str(tmp_path), "--json", str(out)]
        assert main(["fit", *options]) == 0
        got = json.loads(out.read_text())
        assert (got["server"]["differs"], got["in_flight_tokens"]) == (False, 2048 * batches)
    capsys.readouterr()


@pytest.mark.vllm
def test_a_real_vllm(
    vllm: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its KV cache is what its configuration and its memory give, to the block."""
    out = tmp_path / "fit.json"
    config = ["--config", str(real_vllm.MODEL)]
    # `fit` counts 16 bits, and a server that does not show its type has as many blocks as its own
    # type leaves: of float32 half.
    kv_gb = GIB / 1e9 * 16 / {"bfloat16": 16, "float32": 32}[cpu_dtype().value]
    assert main(["fit", vllm("speculating"), *config, "--json", str(out)]) == 0
    served = json.loads(out.read_text())
    alone = [*config, "--kv-memory", str(kv_gb), "--block-size", str(served["block_tokens"])]
    alone += ["--max-model-len", str(served["max_model_len"])]
    assert main(["fit", *alone, "--json", str(out)]) == 0
    computed = json.loads(out.read_text())
    same = ("kv_blocks", "block_bytes", "kv_bytes_per_token", "context_in_blocks", "user")
    assert {name: computed[name] for name in same} == {name: served[name] for name in same}
    assert not served["server"]["differs"]
    assert served["server"]["kv_tokens"] == served["kv_tokens"]
    assert main(["fit", vllm("speculating"), "--users", "4"]) == 0  # without a configuration
    assert "KV cache                        unknown" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("edits", "options", "message"),
    [
        ({}, ["--gpu", "h10"], "--gpu is 'h10': expected one of l4, .*; try --gpu h100"),
        ({}, ["--gpu-memory-utilization", "1.1"], "is '1.1': expected a share up to 1"),
        ({}, ["--max-model-len", "131073"], "131,073, above the model's own limit of 131,072"),
        ({}, ["--pipeline-parallel", "81"], "81, and the model has 80 layers"),
        ({}, ["--tensor-parallel", "8", "--decode-context-parallel", "2"], "each KV head is on 1"),
        ({}, ["--prefill-apart", "3072"], "expected tokens of a prompt and of an answer"),
        ({}, ["--gpus", "4", "--prefill-apart", "3072:512"], "GPUs whose speed is known"),
        ({}, ["--slo", "ttft_p95=1s"], "expected both, as nothing else here knows an SLO"),
        ({}, ["--prefill-apart", "3072:512", "--slo", "e2e_p95=1s"], "expected a p95 of TTFT"),
        ({}, ["--kv-cache-dtype", "fp8_ds_mla"], "this one is for latent attention"),
        ({}, ["--draft", "mtp"], "config.json has no num_nextn_predict_layers"),
        (
            {"num_attention_heads": 40, "num_key_value_heads": 10, "hidden_size": 5120},
            ["--tensor-parallel", "16"],
            "40 attention and 10 KV heads: .* try --tensor-parallel 2",
        ),
        ({}, ["--pipeline-parallel", "4097"], "'4097': expected a whole number from 1 to 4,096"),
        ({}, ["--data-parallel", "1000000000"], "expected a whole number from 1 to 4,096"),
        ({}, ["--users", "1" + 400 * "0"], "expected a whole number from 1 to 1,000,000,000"),
        *(
            ({}, [flag, "0"], f"{flag} is '0': expected a number above 0")
            for flag in ("--memory", "--bandwidth", "--weights", "--kv-memory", "--link")
        ),
        ({}, ["--tensor-parallel", "3"], "64 attention and 8 KV heads: .* try --tensor-parallel 2"),
        ({}, ["--context", "131073"], "131,073 tokens is above the limit of 131,072: .*131072"),
        ({}, ["--admit", "16,200000x2"], "200,000 tokens is above the limit .*--admit 131072"),
        ({}, ["--admit", "4096x"], "--admit is '': expected a whole number from 1"),
        ({}, ["--admit", "x4"], "--admit is '': expected a whole number from 1"),
        ({}, ["--reserve", "8GB"], "--reserve is '8GB': expected a number above 0"),
        ({"model_type": "mamba2"}, [], "model_type 'mamba2', whose .*: expected one of arcee"),
        ({"num_hidden_layers": None}, [], "lacks num_hidden_layers: expected"),
        ({"model_type": "qwen2", "use_sliding_window": True}, [], "28 as max_window_layers"),
        ({"layer_types": ["linear_attention", "full_attention"] * 40}, [], "layers of linear_a"),
        ({"layer_types": ["sliding_attention"] * 80}, [], "lacks sliding_win"),  # of which window?
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, [], "lacks qk_rope_head_dim, "),
        ({"model_type": "deepseek_v3"}, [], "lacks kv_lora_rank, "),
        ({"model_type": "deepseek_v3", "index_topk": 2048} | LATENT, [], "has index_topk"),
        ({}, ["--config", "/nowhere"], "--config is /nowhere: expected a Hugging Face config.json"),
    ],
)
def test_bad_input(
    edits: Config,
    options: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One sentence; what is not understood is refused, not guessed."""
    assert run(tmp_path, LLAMA_70B | edits, *options) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("flag", "value"), [("--gpus", "4"), ("--draft", "mtp"), ("--quantization", "fp8")]
)
def test_of_no_model(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused before the server is asked: its cache says nothing of the model's shape."""
    assert main(["fit", "http://127.0.0.1:9", flag, value]) == 2
    assert f"{flag} is given without --config" in capsys.readouterr().err


FIRST = "model-00001-of-00002.safetensors"
SECOND = "model-00002-of-00002.safetensors"


def weight_file(path: Path, values: int, dtype: str = "BF16") -> None:
    """A file of safetensors with one tensor, of zeros that no disk holds."""
    size = values * {"BF16": 2, "F32": 4}[dtype]
    tensor = {"dtype": dtype, "shape": [values], "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": tensor}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(file.tell() + size)


@pytest.mark.parametrize(
    ("files", "options", "gb"),
    [
        ({"model.safetensors": (10**10, "BF16")}, [], "20.04"),  # with tables of rotary positions
        ({FIRST: (4 * 10**9, "BF16"), SECOND: (6 * 10**9, "BF16")}, [], "20.04"),
        ({"model.safetensors": (10**10, "F32")}, [], "20.04"),  # loaded in 16 bit
        # a size that says nothing of the model: by its shape
        ({}, [], "16.09"),
        ({FIRST: (4 * 10**9, "BF16")}, [], "16.09"),
        ({FIRST: (4 * 10**9, "BF16"), SECOND: None}, [], "16.09"),
        # files are in 16 bit, and vLLM loads them in 8
        ({"model.safetensors": (8 * 10**9, "BF16")}, ["--quantization", "fp8"], "9.11"),
    ],
)
def test_files_beside_it(
    files: dict[str, tuple[int, str] | None],
    options: list[str],
    gb: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Their size counts where all are there, and vLLM loads what they hold."""
    for name, weights in files.items():
        if weights is None:  # what Git LFS leaves, without its files
            (tmp_path / name).write_text(
                "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
            )
        else:
            weight_file(tmp_path / name, *weights)
    assert run(tmp_path, LLAMA_8B, *options) == 6
    shown = capsys.readouterr().out
    assert re.findall(r"^weights +([\d.]+) GB", shown, re.MULTILINE) == [gb]


def test_a_link_to_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cache of Hugging Face's whose files were deleted."""
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    assert run(tmp_path, LLAMA_8B) == 6
    assert "weights                         16.09 GB" in capsys.readouterr().out


def test_text_part_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A multimodal model's text part is the model."""
    weight_file(tmp_path / "model-00001-of-00001.safetensors", 5 * 10**6)
    assert run(tmp_path, {"model_type": "qwen2_5_vl", "text_config": QWEN2_1_5B}) == 6
    assert "weights                         0.01 GB" in capsys.readouterr().out
    assert main(["fit"]) == 2
    assert "--config is missing" in capsys.readouterr().err
