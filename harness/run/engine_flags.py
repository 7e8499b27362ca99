"""The embedded server's flags, spelled as vLLM spells them wherever vLLM has one."""

from __future__ import annotations

import argparse
from argparse import BooleanOptionalAction
from collections.abc import Callable
from typing import Any, Final

from harness.core.value_parsers import duration, share, whole_number
from harness.engine.config import EngineConfig
from harness.engine.shapes import MODELS
from harness.memory.cards import GPUS

Row = tuple[str, dict[str, Any]]

SWITCH: Final[dict[str, Any]] = {"action": BooleanOptionalAction}


def _row(flag: str, read: Callable[[str], Any], metavar: str, text: str) -> Row:
    return flag, {"type": read(flag), "metavar": metavar, "help": text}


def _number(flag: str, text: str) -> Row:
    return _row(flag, whole_number, "N", text)


# field of EngineConfig -> (its flag, argparse's keywords)
FLAGS: Final[dict[str, Row]] = {
    "model": (
        "--shape",
        {
            "choices": MODELS,
            "metavar": "NAME",
            "help": f"Simulate this model: {', '.join(MODELS)}.",
        },
    ),
    "gpu": (
        "--gpu",
        {"choices": GPUS, "metavar": "NAME", "help": f"Simulate this GPU: {', '.join(GPUS)}."},
    ),
    "max_num_seqs": _number("--max-num-seqs", "Limit the sequences in a batch."),
    "max_num_batched_tokens": _number("--max-num-batched-tokens", "Limit the tokens in a step."),
    "max_model_len": _number("--max-model-len", "Limit the tokens of a request."),
    "block_size": _number("--block-size", "Set the tokens per KV block."),
    "num_gpu_blocks": _number(
        "--num-gpu-blocks-override", "Set the KV blocks. Default: as many as fit the GPU."
    ),
    "enable_chunked_prefill": (
        "--enable-chunked-prefill",
        SWITCH | {"help": "Split long prompts."},
    ),
    "enable_prefix_caching": (
        "--enable-prefix-caching",
        SWITCH | {"help": "Reuse the KV cache of prefixes."},
    ),
    "stream_interval": _number("--stream-interval", "Send N tokens per event."),
    "front_end_ns": _row(
        "--front-end-delay",
        lambda flag: duration(flag, "3ms"),
        "TIME",
        "Delay requests before the scheduler sees them. Default: none.",
    ),
    "jitter": _row("--jitter", share, "SHARE", "Vary the steps' times. Default: 2%%."),
}
COMPUTED: Final = ("num_gpu_blocks", "front_end_ns", "jitter")  # their help says the default


def declare(parser: argparse.ArgumentParser, title: str) -> None:
    group = parser.add_argument_group(title)
    defaults = EngineConfig()
    for name, (flag, options) in FLAGS.items():
        text = options["help"]
        if name not in COMPUTED:
            text += f" Default: {getattr(defaults, name)}."
        described = {**options, "help": text}
        group.add_argument(flag, dest=f"engine_{name}", default=None, **described)


def given_flags(args: argparse.Namespace) -> dict[str, str]:
    """Field -> flag of those that were given."""
    given = [name for name in FLAGS if getattr(args, f"engine_{name}") is not None]
    return {name: FLAGS[name][0] for name in given}


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The engine asked for. Raises ConfigError."""
    given = {name: getattr(args, f"engine_{name}") for name in given_flags(args)}
    return EngineConfig(**given)
