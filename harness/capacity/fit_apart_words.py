"""What `vllm-harness fit --prefill-apart` chooses, in words, and the command that settles it."""

from __future__ import annotations

import shlex
from argparse import Namespace
from typing import TYPE_CHECKING, Final

from harness.memory.apart_gain import SPEED_SPREAD, Choice
from harness.memory.prefill_apart import WORTH_IT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.capacity.fit_answer import Facts

DEPLOYMENTS: Final = "gpus.toml"
# Of `fit` and of vLLM, and the value that need not be said.
FLAGS: Final = (
    ("tensor_parallel", "--tensor-parallel-size", 1),
    ("pipeline_parallel", "--pipeline-parallel-size", 1),
    ("decode_context_parallel", "--decode-context-parallel-size", 1),
    ("data_parallel", "--data-parallel-size", 1),
    ("quantization", "--quantization", None),
    ("kv_memory", "--kv-cache-memory-bytes", None),
    ("kv_cache_dtype", "--kv-cache-dtype", "auto"),
    ("gpu_memory_utilization", "--gpu-memory-utilization", None),
    ("max_model_len", "--max-model-len", None),
    ("max_num_batched_tokens", "--max-num-batched-tokens", None),
    ("max_num_seqs", "--max-num-seqs", None),
)


def choice_words(apart: Facts) -> str:
    """Return the choice and its reason."""
    choice = Choice(apart["choose"])
    limits = " and ".join(apart["slos"])
    if choice is Choice.NONE:
        return f"Choose none: no layout keeps {limits}."
    if not limits:
        return _at_full_rates(apart)
    layout = _layout(apart["gain"]["prefill"], apart["gain"]["decode"])
    begin, end = {
        Choice.APART: (f"Choose {layout}:", ""),
        Choice.TOGETHER: (f"Choose all together: {layout} have", ""),
        Choice.OPEN: (f"Open: {layout} have", " Measure both."),
    }[choice]
    return (
        f"{begin} {_times(apart['gain'])} of all together within {limits}, at "
        f"{apart['of_peaks']:.0%} of the peaks of the data sheet, as served engines reach them "
        f"(each speed ±{SPEED_SPREAD:.0%}).{end}"
    )


def _at_full_rates(apart: Facts) -> str:
    if apart["choose"] == Choice.TOGETHER:
        return f"Choose all together: no other layout has {WORTH_IT:.0%} of their requests/s."
    layout = _layout(apart["chosen_prefill"], apart["chosen_decode"])
    return (
        f"Choose {layout}: at least {WORTH_IT:.0%} of the requests/s of all together, without the "
        "interference."
    )


def _layout(prefill: int, decode: int) -> str:
    return f"{prefill} for prefill and {decode} for decoding"


def _times(gain: Facts) -> str:
    low, high = gain["ci95"]
    return f"{gain['likely']:.2f} times (95% interval {low:.2f} to {high:.2f}) the {gain['of']}"


def measure_both(args: Namespace, apart: Facts) -> Facts | None:
    """Return a file of deployments and the command that compares them; None: nothing is open."""
    if apart["choose"] != Choice.OPEN:
        return None
    each = apart["gpus_of_a_replica"]
    gpus = [_gpus(range(first, first + each)) for first in range(0, apart["replicas"] * each, each)]
    prefill = apart["gain"]["prefill"]
    return {
        "deployments": DEPLOYMENTS,
        "tables": (
            f"[together]\ngpus = {_texts(gpus)}\n\n"
            f"[apart]\nprefill = {_texts(gpus[:prefill])}\ndecode = {_texts(gpus[prefill:])}\n"
        ),
        "command": shlex.join([*_vary(args), "--", *_knee(apart)]),
    }


def _gpus(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _texts(values: Iterable[str]) -> str:
    """A list in TOML."""
    quoted = (f'"{value}"' for value in values)
    return f"[{', '.join(quoted)}]"


def _vary(args: Namespace) -> list[str]:
    folder = args.config.parent if args.config.suffix == ".json" else args.config
    words = ["vllm-harness", "vary", "--deployments", DEPLOYMENTS, "--model-dir", str(folder)]
    flags = [
        f"{flag}={value:.0f}" if name == "kv_memory" else f"{flag}={value}"
        for name, flag, unsaid in FLAGS
        if (value := getattr(args, name)) != unsaid
    ]
    return [*words, f"--start-args={shlex.join(flags)}"] if flags else words


def _knee(apart: Facts) -> list[str]:
    words = ["knee", "--prompt-tokens", str(apart["prompt_tokens"])]
    words += ["--output-tokens", str(apart["answer_tokens"])]
    for slo in apart["slos"]:
        words += ["--slo", slo]
    return words
