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

SWITCH: Final = {"action": BooleanOptionalAction}


def _row(flag: str, read: Callable[[str], Any], metavar: str, text: str) -> Row:
    return flag, {"type": read(flag), "metavar": metavar, "help": text}


def _number(flag: str, text: str) -> Row:
    return _row(flag, whole_number, "N", text)


# field of EngineConfig -> (its flag, argparse's keywords)
FLAGS: Final[dict[str, Row]] = {
    "model": ("--shape", {"choices": MODELS, "metavar": "NAME", "help": ", ".join(MODELS)}),
    "gpu": ("--gpu", {"choices": GPUS, "metavar": "NAME", "help": ", ".join(GPUS)}),
    "max_num_seqs": _number("--max-num-seqs", "maximum number of sequences in a batch"),
    "max_num_batched_tokens": _number("--max-num-batched-tokens", "maximum tokens in a step"),
    "max_model_len": _number("--max-model-len", "maximum tokens of a request"),
    "block_size": _number("--block-size", "tokens per KV block"),
    "num_gpu_blocks": _number("--num-gpu-blocks-override", "KV blocks; default: what fits the GPU"),
    "enable_chunked_prefill": ("--enable-chunked-prefill", SWITCH),
    "enable_prefix_caching": ("--enable-prefix-caching", SWITCH),
    "stream_interval": _number("--stream-interval", "tokens per event"),
    "front_end_ns": _row(
        "--front-end-delay",
        lambda flag: duration(flag, "3ms"),
        "TIME",
        "delay before the scheduler sees a request; default: none",
    ),
    "jitter": _row("--jitter", share, "SHARE", "variation of the steps' times; default: 2%%"),
}
COMPUTED: Final = ("num_gpu_blocks", "front_end_ns", "jitter")  # their help says the default


def declare(parser: argparse.ArgumentParser, title: str) -> None:
    group = parser.add_argument_group(title)
    defaults = EngineConfig()
    for name, (flag, options) in FLAGS.items():
        help_texts = []
        if "help" in options:
            help_texts.append(options["help"])
        if name not in COMPUTED:
            help_texts.append(f"default: {getattr(defaults, name)}")
        described = {**options, "help": "; ".join(help_texts)}
        group.add_argument(flag, dest=f"engine_{name}", default=None, **described)


def given_flags(args: argparse.Namespace) -> dict[str, str]:
    """Field -> flag of those that were given."""
    given = [name for name in FLAGS if getattr(args, f"engine_{name}") is not None]
    return {name: FLAGS[name][0] for name in given}


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The engine asked for. Raises ConfigError."""
    given = {name: getattr(args, f"engine_{name}") for name in given_flags(args)}
    return EngineConfig(**given)
