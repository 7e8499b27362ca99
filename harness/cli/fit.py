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
from harness.run.option_table import CERTIFICATE, JSON

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
    _count("--context", "of each user, prompt and answer; default: 4096", metavar="TOKENS"),
    _count("--users", "do so many fit, and which context can each have?"),
    Option("--admit", "do these fit at once? 4096x40,16384", _requests, "TOKENSxN,..."),
    _gpu_count("--gpus", "that many as replicas, or fewer replicas that share GPUs?"),
    Option(
        "--prefill-apart",
        "requests of so many tokens: should some of --gpus only prefill?",
        _prompt_and_answer,
        "PROMPT:ANSWER",
    ),
    _gb("--link", "of a replica to another, in GB/s, for --prefill-apart; default: 50"),
)
GPU_OPTIONS = (
    Option("--gpu", ", ".join(GPUS), gpu_name, "NAME"),
    _gb("--memory", "of each GPU; default: as its driver reports it"),
    _gb("--bandwidth", "of each GPU's memory, in GB/s; default: by its data sheet"),
    Option("--quantization", "of a model in 16 bit, by vLLM's flag of the same name", str, "NAME"),
    Option(
        "--draft",
        "a draft model's config.json, or mtp: the model's own further layers",
        Path,
        "FILE",
    ),
    _gb("--weights", "of all GPUs; default: the files beside --config, or computed"),
    _gb(
        "--reserve",
        "of each GPU, for neither weights nor KV cache; default: as start logs show",
        zero=True,
    ),
    _gb("--kv-memory", "of each GPU, for the KV cache; default: what is left"),
)
DIVISION = (
    _gpu_count("--tensor-parallel", "GPUs that share a replica's layers", 1),
    _gpu_count("--pipeline-parallel", "stages of layers, each on GPUs of its own", 1),
    _gpu_count("--decode-context-parallel", "GPUs of these that share a context's tokens", 1),
    _gpu_count("--data-parallel", "engines with a KV cache each, that share experts", 1),
    _switch("--enable-expert-parallel", "experts whole on a GPU, not a part of each on all"),
)
VLLM_OPTIONS = (
    Option("--gpu-memory-utilization", "default: 0.92", _utilization, "SHARE"),
    _count("--max-model-len", "default: the model's own limit", metavar="TOKENS"),
    Option("--kv-cache-dtype", "", str, None, AUTO, choices=KV_CACHE_DTYPES),
    _count("--block-size", "tokens per KV block", 16),
    _count("--max-num-batched-tokens", "of a step; default: vLLM's, by the GPU"),
    _count("--max-num-seqs", "requests that vLLM runs at once: its slots"),
    _switch("--no-async-scheduling", "one batch in flight, as on a CPU"),
)


def add(commands: Subparsers) -> None:
    parser = add_command(commands, "fit", "harness.cli.fit_work:fit")
    parser.add_argument("url", nargs="?", metavar="URL", help="a running server: its KV cache")
    declare(parser, [Option("--config", "a Hugging Face config.json, or its folder", Path, "FILE")])
    for title, options in (
        ("what is asked", WHAT_IS_ASKED),
        ("GPUs", GPU_OPTIONS),
        ("how they share a model", DIVISION),
        ("as vLLM is started", VLLM_OPTIONS),
    ):
        declare(parser.add_argument_group(title), options)
    declare(parser, (*CERTIFICATE, JSON))
