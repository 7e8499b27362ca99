"""How the KV cache scales with --max-model-len: a start for each length, and what it says.

vLLM fills --gpu-memory-utilization of the GPU whatever the length, so the memory in use hardly
depends on it; the length decides how many whole requests the cache holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from harness.errors import ConfigError, ServerUnreachable
from harness.lifecycle.vllm_start import StartOptions, started
from harness.memory.kv_dtypes import AUTO, meant_dtype, model_value_bytes
from harness.memory.kv_layout import kv_layout
from harness.server.access import TargetAccess
from harness.server.address import Address
from harness.server.http_exchange import fetch
from harness.server.model_config import context_limit, model_config, model_shape
from harness.wire.kv_cache import cache_config, cache_summary

Row = dict[str, Any]  # by COLUMNS; None: not measured

COLUMNS: Final = (
    "max_model_len", "gpu_mem_used_mb", "delta_mb_from_prev", "bytes_per_token_est", "notes",
    "kv_tokens", "kv_blocks", "block_size", "max_concurrency", "bytes_per_token_model",
)  # fmt: skip
MIB: Final = 1 << 20


def measure_lengths(
    options: StartOptions, lengths: Sequence[int], folder: Path
) -> Iterator[list[Row]]:
    """Yield the rows so far, after each length, ascending. Raises ConfigError."""
    own = context_limit(model_config(options.model_dir))
    if own and min(lengths) > own:
        raise ConfigError(
            f"--lengths begin at {min(lengths):,}, above the model's own limit of {own:,} tokens: "
            f"expected a length up to that; try --lengths {own}."
        )
    rows: list[Row] = []
    for length in sorted(set(lengths)):
        row: Row = dict.fromkeys(COLUMNS) | {"max_model_len": length}
        rows.append(row)
        if own and length > own:
            row["notes"] = f"above the model's own limit of {own:,} tokens: vLLM refuses it"
        else:
            try:
                row |= _measured(options, length, folder / f"vllm-{length}.log")
            except ServerUnreachable as error:  # for example: the KV cache holds no such request
                row["notes"] = str(error).partition(": expected")[0]
        yield with_slopes(rows)


def _measured(options: StartOptions, length: int, log: Path) -> Row:
    with started(options, ("--max-model-len", str(length)), log=log) as server:
        page = fetch(TargetAccess(Address.parse(server.url)), "/metrics").body
    cache = cache_summary(cache_config(page))
    start_log = server.start_log
    used_mib = list(start_log.gpu_mib.values())[-1]
    config = model_config(options.model_dir)
    return {
        "gpu_mem_used_mb": used_mib if used_mib > 0 else None,  # NaN: hidden
        "kv_tokens": start_log.kv_tokens or cache.get("kv_tokens"),
        "kv_blocks": cache.get("kv_blocks"),
        "block_size": cache.get("block_size"),
        "max_concurrency": start_log.max_concurrency,
        "bytes_per_token_model": bytes_per_token(config, start_log.flags),
    }


def with_slopes(rows: list[Row]) -> list[Row]:
    """Add what follows from the row before; nothing without a GPU."""
    before: Row = {}
    for row in rows:
        if row["gpu_mem_used_mb"] is None:
            row["notes"] = row["notes"] or "no GPU: its columns are empty"
            continue
        if before:
            more_mib = row["gpu_mem_used_mb"] - before["gpu_mem_used_mb"]
            more_tokens = row["max_model_len"] - before["max_model_len"]
            row["delta_mb_from_prev"] = more_mib
            row["bytes_per_token_est"] = more_mib * MIB / more_tokens
            row["notes"] = "the slope is not the cost of a token: vLLM fills its memory share"
        before = row
    return rows


def bytes_per_token(config: Mapping[str, Any], flags: Mapping[str, Any]) -> int | None:
    """Return keys and values of one token in all layers; None where the config does not say."""
    with suppress(ConfigError):
        shape = model_shape(config)
        dtype = meant_dtype(str(flags.get("kv_cache_dtype") or AUTO), shape.kv_cache_dtype)
        value_bytes = model_value_bytes(str(flags.get("dtype") or ""))
        return kv_layout(shape, dtype, model_bytes=value_bytes).read_bytes(1)
    return None
