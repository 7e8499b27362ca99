"""The server's flags and its `max_num_seqs`: given by the user, read, or inferred from metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from harness.diagnosis.slots import infer_max_num_seqs
from harness.errors import ConfigError, closest
from harness.metrics.level_figures import MaxNumSeqs, Source

if TYPE_CHECKING:
    from harness.records.samples import ServerSample

MAX_NUM_SEQS: Final = "max_num_seqs"
# section of vLLM's configuration -> its flags that influence a knee
KNEE_FLAGS: Final = {
    "scheduler_config": ("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill",
                         "long_prefill_token_threshold", "policy", "async_scheduling",
                         "stream_interval"),
    "cache_config": ("gpu_memory_utilization", "cache_dtype", "enable_prefix_caching"),
    "parallel_config": ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
                        "enable_expert_parallel"),
    "model_config": ("max_model_len", "dtype", "quantization", "enforce_eager"),
    "speculative_config": ("method", "num_speculative_tokens"),
}  # fmt: skip
# further flags that --server-flag accepts, as `vllm serve` spells them
SPELLED: Final = (
    "api_server_count",
    "block_size",
    "kv_cache_dtype",
    "num_gpu_blocks_override",
    "scheduling_policy",
)


def parse_server_flag(text: str) -> tuple[str, int | float | str]:
    """Parse `max-num-seqs=256` of --server-flag: ("max_num_seqs", 256). Raises ConfigError."""
    name, equals, value = (part.strip() for part in text.partition("="))
    name = name.lstrip("-").replace("-", "_")
    if not (name.isidentifier() and equals and value):
        raise ConfigError(
            f"--server-flag is {text!r}: expected NAME=VALUE; try --server-flag max-num-seqs=256."
        )
    known = sorted({*SPELLED, *chain.from_iterable(KNEE_FLAGS.values())})
    if name not in known:
        suggestion = closest(name, known, MAX_NUM_SEQS).replace("_", "-")
        raise ConfigError(
            f"--server-flag is {text!r}, which is not a known flag: expected one of "
            f"{', '.join(known).replace('_', '-')}; try --server-flag {suggestion}={value}."
        )
    return name, _value(value)


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    switches = {"true": True, "false": False}
    return switches.get(text.lower(), text)


def merge_flags(read: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the flags that the server shows and those that the user gave. Raises ConfigError."""
    for name in read.keys() & given.keys():
        if read[name] != given[name]:
            option = name.replace("_", "-")
            raise ConfigError(
                f"--server-flag {option}={given[name]} contradicts the server, which says "
                f"{read[name]}: expected the flag that it was started with; leave it out."
            )
    return {**read, **given}


def max_num_seqs(server: Mapping[str, Any], samples: Sequence[ServerSample]) -> MaxNumSeqs:
    """Return it from run.json's server and the run's samples, by engine."""
    # Running requests are summed over all engines, while the flag is per engine.
    flags = server.get("flags") or {}
    replicas = server.get("replicas") or [1]
    ranks = flags.get("data_parallel_size")
    engines_each = ranks if isinstance(ranks, int) else 1
    engines = server.get("engines") or len(replicas) * engines_each
    prefill_engines = len(server.get("prefill") or ()) * engines_each
    value = flags.get(MAX_NUM_SEQS)
    if isinstance(value, int):
        read = server.get("read") or ()
        source = Source.READ if MAX_NUM_SEQS in read else Source.GIVEN
        return MaxNumSeqs(value, source, engines, prefill_engines)
    slots = infer_max_num_seqs(samples, engines)
    if slots is None:
        return MaxNumSeqs(engines=engines, prefill_engines=prefill_engines)
    return MaxNumSeqs(round(slots / engines), Source.INFERRED, engines, prefill_engines)
