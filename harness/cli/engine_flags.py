"""The embedded engine's flags, spelled as vLLM spells them wherever vLLM has one."""

from __future__ import annotations

from argparse import BooleanOptionalAction
from typing import TYPE_CHECKING, Any, Final

from harness.cli.parsing import count, duration

if TYPE_CHECKING:
    import argparse

    from harness.engine.config import EngineConfig

# flag -> (field of EngineConfig, argparse's keywords). A flag that is not given leaves the default.
FLAGS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "--shape": ("model", {"metavar": "NAME", "help": "model shape"}),
    "--gpu": ("gpu", {"metavar": "NAME", "help": "whose bandwidth and arithmetic"}),
    **{
        flag: (flag.strip("-").replace("-", "_"), {"type": count(flag), "metavar": "N"})
        for flag in ("--max-num-seqs", "--max-num-batched-tokens", "--block-size")
    },
    "--num-gpu-blocks-override": (
        "num_gpu_blocks",
        {"type": count("--num-gpu-blocks-override"), "metavar": "N", "help": "KV cache blocks"},
    ),
    "--max-model-len": ("max_model_len", {"type": count("--max-model-len"), "metavar": "N"}),
    "--enable-prefix-caching": ("enable_prefix_caching", {"action": BooleanOptionalAction}),
    "--enable-chunked-prefill": ("enable_chunked_prefill", {"action": BooleanOptionalAction}),
    "--stream-interval": ("stream_interval", {"type": count("--stream-interval"), "metavar": "N"}),
    "--front-end": (
        "front_end_ns",
        {
            "type": duration("--front-end"),
            "metavar": "TIME",
            "help": "delay of each request before the scheduler sees it",
        },
    ),
}


def declare(parser: argparse.ArgumentParser, title: str) -> None:
    """Add the flags as a group."""
    group = parser.add_argument_group(title)
    for flag, (name, options) in FLAGS.items():
        group.add_argument(flag, dest=f"engine_{name}", default=None, **options)


def given(args: argparse.Namespace) -> dict[str, str]:
    """Field -> flag of those that were given."""
    return {
        name: flag
        for flag, (name, _) in FLAGS.items()
        if getattr(args, f"engine_{name}") is not None
    }


def config(args: argparse.Namespace) -> EngineConfig:
    """The engine asked for. Raises ConfigError."""
    from harness.engine.config import EngineConfig  # noqa: PLC0415 - only when an engine is wanted

    return EngineConfig(**{name: getattr(args, f"engine_{name}") for name in given(args)})
