"""The embedded engine's flags, spelled as vLLM spells them wherever vLLM has one."""

from __future__ import annotations

from argparse import BooleanOptionalAction
from typing import TYPE_CHECKING, Any, Final

from harness.cli.parsing import count, duration, share
from harness.engine.config import EngineConfig
from harness.engine.shapes import GPUS, MODELS

if TYPE_CHECKING:
    import argparse

SWITCH: Final = {"action": BooleanOptionalAction}


def _number(flag: str, text: str) -> dict[str, Any]:
    return {"type": count(flag), "metavar": "N", "help": text}


# field of EngineConfig -> (its flag, argparse's keywords)
FLAGS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "model": ("--shape", {"choices": MODELS, "metavar": "NAME", "help": ", ".join(MODELS)}),
    "gpu": ("--gpu", {"choices": GPUS, "metavar": "NAME", "help": ", ".join(GPUS)}),
    "max_num_seqs": ("--max-num-seqs", _number("--max-num-seqs", "sequences in a batch at most")),
    "max_num_batched_tokens": (
        "--max-num-batched-tokens",
        _number("--max-num-batched-tokens", "tokens in a step at most"),
    ),
    "max_model_len": ("--max-model-len", _number("--max-model-len", "tokens of a request at most")),
    "block_size": ("--block-size", _number("--block-size", "tokens in a KV block")),
    "num_gpu_blocks": (
        "--num-gpu-blocks-override",
        _number("--num-gpu-blocks-override", "KV blocks; default: what the GPU's memory leaves"),
    ),
    "enable_chunked_prefill": ("--enable-chunked-prefill", SWITCH),
    "enable_prefix_caching": ("--enable-prefix-caching", SWITCH),
    "stream_interval": ("--stream-interval", _number("--stream-interval", "tokens in an event")),
    "front_end_ns": (
        "--front-end-delay",
        {
            "type": duration("--front-end-delay"),
            "metavar": "TIME",
            "help": "before the scheduler sees a request; default: none",
        },
    ),
    "jitter": (
        "--jitter",
        {
            "type": share("--jitter"),
            "metavar": "SHARE",
            "help": "by which a step's time varies; default: 2%%",
        },
    ),
}
COMPUTED: Final = ("num_gpu_blocks", "front_end_ns", "jitter")  # their help says the default


def declare(parser: argparse.ArgumentParser, title: str) -> None:
    """Add the flags as a group."""
    group = parser.add_argument_group(title)
    defaults = EngineConfig()
    for name, (flag, options) in FLAGS.items():
        text = [options.get("help", "")] if options.get("help") else []
        if name not in COMPUTED:
            text.append(f"default: {getattr(defaults, name)}")
        described = {**options, "help": "; ".join(text)}
        group.add_argument(flag, dest=f"engine_{name}", default=None, **described)


def given(args: argparse.Namespace) -> dict[str, str]:
    """Field -> flag of those that were given."""
    return {
        name: flag
        for name, (flag, _) in FLAGS.items()
        if getattr(args, f"engine_{name}") is not None
    }


def config(args: argparse.Namespace) -> EngineConfig:
    """The engine asked for. Raises ConfigError."""
    return EngineConfig(**{name: getattr(args, f"engine_{name}") for name in given(args)})
