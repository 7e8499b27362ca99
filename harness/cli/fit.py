"""`vllm-harness fit`: what fits on GPUs, by arithmetic, from a config.json or a running server."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from harness.cli.parsing import Subparsers, add_command
from harness.core.value_parsers import positive_number, whole_number
from harness.errors import ConfigError
from harness.memory.cards import GPUS, gpu_name
from harness.memory.kv_dtypes import AUTO, KV_CACHE_DTYPES
from harness.run.option import Option, declare, number_option
from harness.run.option_table import CERTIFICATE, JSON, SLO

MOST: Final = 10**9  # tokens or requests: more than any server holds
MOST_GPUS: Final = 4096
_count = partial(number_option, max_value=MOST)
_gpu_count = partial(number_option, max_value=MOST_GPUS)


def _gb(flag: str, text: str, *, zero: bool = False) -> Option:
    """An option in GB, read as bytes; `zero`: it may be 0."""
    read = positive_number(flag)

    def in_bytes(word: str) -> float:
        return 0.0 if zero and word == "0" else read(word) * 1e9

    return Option(flag, text, in_bytes, "GB")


def _utilization(text: str) -> float:
    flag = "--gpu-memory-utilization"
    share = positive_number(flag)(text)
    if share > 1:
        raise ConfigError(f"{flag} is {text!r}: expected a share up to 1; try {flag} 0.92.")
    return share


def _requests(text: str) -> list[tuple[int, int]]:
    """Parse `4096x40,16384`: the tokens of each request, and how many there are."""
    read = whole_number("--admit", 1, 4096, MOST)
    requests = []
    for part in text.split(","):
        tokens, times_given, times = part.partition("x")
        requests.append((read(tokens), read(times) if times_given else 1))
    return requests


def _prompt_and_answer(text: str) -> tuple[int, int]:
    """Parse `3072:1024`."""
    read = whole_number("--prefill-apart", 1, 3072, MOST)
    prompt, colon, answer = text.partition(":")
    if not colon:
        raise ConfigError(
            f"--prefill-apart is {text!r}: expected tokens of a prompt and of an answer; try "
            "--prefill-apart 3072:1024."
        )
    return read(prompt), read(answer)


def _switch(flag: str, text: str) -> Option:
    return Option(flag, text, None)


WHAT_IS_ASKED = (
    _count(
        "--context",
        "Give each user N tokens of prompt and answer. Default: 4096.",
        metavar="TOKENS",
    ),
    _count("--users", "Report whether N users fit, and which context each can have."),
    Option(
        "--admit",
        "Report whether these requests fit at once, for example 4096x40,16384.",
        _requests,
        "TOKENSxN,...",
    ),
    _gpu_count("--gpus", "Compare ways to split N GPUs into replicas."),
    Option(
        "--prefill-apart",
        "Report whether some of --gpus should only prefill, for requests of this length.",
        _prompt_and_answer,
        "PROMPT:ANSWER",
    ),
    SLO._replace(
        help="Divide replicas by what keeps this p95 of TTFT or ITL, for --prefill-apart."
    ),
    _gb("--link", "Set the speed between replicas in GB/s, for --prefill-apart. Default: 50."),
)
GPU_OPTIONS = (
    Option("--gpu", f"Compute for this GPU: {', '.join(GPUS)}.", gpu_name, "NAME"),
    _gb("--memory", "Set the memory of each GPU. Default: as its driver reports it."),
    _gb("--bandwidth", "Set the memory bandwidth of each GPU in GB/s. Default: data sheet."),
    Option(
        "--quantization", "Quantize a 16-bit model, as vLLM's flag of this name does.", str, "NAME"
    ),
    Option(
        "--draft",
        "Add a draft model's config.json, or mtp for the model's own extra layers.",
        Path,
        "FILE",
    ),
    _gb(
        "--weights",
        "Set the size of the weights on all GPUs. Default: the files beside --config, or computed.",
    ),
    _gb(
        "--reserve",
        "Reserve memory of each GPU for neither weights nor KV cache. Default: as start logs show.",
        zero=True,
    ),
    _gb("--kv-memory", "Set the memory of each GPU for the KV cache. Default: what is left."),
)
DIVISION = (
    _gpu_count("--tensor-parallel", "Split a replica's layers over N GPUs.", 1),
    _gpu_count("--pipeline-parallel", "Split the layers into N stages, each on its own GPUs.", 1),
    _gpu_count("--decode-context-parallel", "Let N of these GPUs share a context's tokens.", 1),
    _gpu_count(
        "--data-parallel", "Run N engines that share experts, each with its own KV cache.", 1
    ),
    _switch(
        "--enable-expert-parallel", "Keep each expert whole on one GPU instead of a part on each."
    ),
)
VLLM_OPTIONS = (
    Option(
        "--gpu-memory-utilization",
        "Let vLLM take this share of the memory. Default: 0.92.",
        _utilization,
        "SHARE",
    ),
    _count("--max-model-len", "Limit the context. Default: the model's limit.", metavar="TOKENS"),
    Option(
        "--kv-cache-dtype",
        "Set the type of the KV cache.",
        str,
        None,
        AUTO,
        choices=KV_CACHE_DTYPES,
    ),
    _count("--block-size", "Set the tokens per KV block.", 16),
    _count("--max-num-batched-tokens", "Limit the tokens of a step. Default: vLLM's for the GPU."),
    _count("--max-num-seqs", "Let vLLM run N requests at once: its slots."),
    _switch("--no-async-scheduling", "Keep one batch in flight, as on a CPU."),
)


def add(commands: Subparsers) -> None:
    parser = add_command(commands, "fit", "harness.cli.fit_work:fit")
    parser.add_argument(
        "url", nargs="?", metavar="URL", help="Read the KV cache of this running server."
    )
    declare(
        parser,
        [
            Option(
                "--config", "Read this Hugging Face config.json, or that of a folder.", Path, "FILE"
            )
        ],
    )
    for title, options in (
        ("question", WHAT_IS_ASKED),
        ("GPUs", GPU_OPTIONS),
        ("parallelism", DIVISION),
        ("vLLM flags", VLLM_OPTIONS),
    ):
        declare(parser.add_argument_group(title), options)
    declare(parser, (*CERTIFICATE, JSON))
