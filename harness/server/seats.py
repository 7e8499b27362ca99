"""`max_num_seqs`: given, read or inferred, and which; vLLM's metrics do not have it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from harness.errors import ConfigError, closest
from harness.measure.seats import MaxNumSeqs, Source, inferred_seats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.measure.samples import ServerSample

NAME: Final = "max_num_seqs"
# part of vLLM's configuration -> what of it moves a knee
FLAGS: Final = {
    "scheduler_config": (
        "max_num_seqs",
        "max_num_batched_tokens",
        "enable_chunked_prefill",
        "long_prefill_token_threshold",
        "policy",
        "async_scheduling",
        "stream_interval",
    ),
    "cache_config": ("gpu_memory_utilization", "cache_dtype", "enable_prefix_caching"),
    "parallel_config": (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "enable_expert_parallel",
    ),
    "model_config": ("max_model_len", "dtype", "quantization", "enforce_eager"),
    "speculative_config": ("method", "num_speculative_tokens"),
}
# the same and more as `vllm serve` spells them; a person may name any of these
SPELLED: Final = ("api_server_count", "block_size", "kv_cache_dtype", "num_gpu_blocks_override",
                  "scheduling_policy")  # fmt: skip


def flag_given(text: str) -> tuple[str, int | float | str]:
    """`max-num-seqs=256` of --server-flag as ("max_num_seqs", 256). Raises ConfigError."""
    name, equals, value = (part.strip() for part in text.partition("="))
    name = name.lstrip("-").replace("-", "_")
    if not (name.isidentifier() and equals and value):
        raise ConfigError(
            f"--server-flag is {text!r}: expected NAME=VALUE; try --server-flag max-num-seqs=256."
        )
    known = sorted({*SPELLED, *(flag for flags in FLAGS.values() for flag in flags)})
    if name not in known:
        meant = closest(name, known, NAME).replace("_", "-")
        raise ConfigError(
            f"--server-flag is {text!r}, which is not a known flag: expected one of "
            f"{', '.join(known).replace('_', '-')}; try --server-flag {meant}={value}."
        )
    return name, _value(value)


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def flags_of(read: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The server's flags: what it says and what a person says. Raises ConfigError."""
    for name in read.keys() & given.keys():
        if read[name] != given[name]:
            spelt = name.replace("_", "-")
            raise ConfigError(
                f"--server-flag {spelt}={given[name]} contradicts the server, which says "
                f"{read[name]}: expected the flag that it was started with; leave it out."
            )
    return {**read, **given}


def max_num_seqs(server: Mapping[str, Any], samples: Sequence[ServerSample]) -> MaxNumSeqs:
    """From run.json's server and the run's samples; what is inferred is of all engines."""
    flags, engines = server.get("flags") or {}, server.get("engines") or 1
    value = flags.get(NAME)
    if isinstance(value, int):
        read = NAME in (server.get("read") or ())
        return MaxNumSeqs(value, Source.READ if read else Source.GIVEN, engines)
    slots = inferred_seats(samples)
    if slots is None:
        return MaxNumSeqs(engines=engines)
    return MaxNumSeqs(round(slots / engines), Source.INFERRED, engines)
