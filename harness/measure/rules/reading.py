"""Facts out of a step's entry in knee.json, and what the other steps show beside it.

So a verdict can be made again from knee.json alone, and each figure that it names stands there.
"""

from __future__ import annotations

from dataclasses import fields
from math import isnan, nan
from typing import TYPE_CHECKING, Any, Final

from harness.measure.rules.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# fact -> where the step's entry has it
SOURCES: Final[dict[str, tuple[str, str]]] = {
    "samples": ("server", "samples"),
    "running": ("server", "running_mean"),
    "running_max": ("server", "running_max"),
    "running_flat": ("server", "running_flat_share"),
    "waiting": ("server", "waiting_mean"),
    "waiting_max": ("server", "waiting_max"),
    "capacity": ("server", "waiting_capacity_mean"),
    "preemptions": ("server", "preemptions"),
    "requests_per_s": ("server", "requests_per_s"),
    "prompt_tokens_per_s": ("server", "prompt_tokens_per_s"),
    "api_cores": ("server", "api_server_cores"),
    "engine_cores": ("server", "engine_cores"),
    "clock_share": ("gpu", "sm_clock_mhz_mean"),  # over the highest, below
    "throttle": ("gpu", "throttled_share"),
    "client_ttft_ms": ("ttft_ms", "mean"),
    "gap_p50_ms": ("gaps", "p50_ms"),
    "gap_p95_ms": ("gaps", "p95_ms"),
    "gap_mean_ms": ("gaps", "mean_ms"),
    "alone_p50_ms": ("gaps", "alone_p50_ms"),
    "alone_p95_ms": ("gaps", "alone_p95_ms"),
    "beside_p50_ms": ("gaps", "beside_p50_ms"),
    "beside_share": ("gaps", "prompt_share"),
    "longest_beside_share": ("gaps", "longest_prompt_share"),
    "late_share": ("gaps", "late_share"),
    "base_ms": ("gaps", "base_ms"),
    "slope_ms": ("gaps", "slope_ms"),
    "prompt_tokens": ("gaps", "prompt_tokens_mean"),
    "dispersion": ("arrivals", "dispersion"),
    "scheduled": ("arrivals", "scheduled"),
}
SERVER_MS: Final = ("ttft", "queue", "prefill", "decode")  # means, in seconds in the entry
assert set(SOURCES) <= {f.name for f in fields(Facts)}  # noqa: S101 - a typo would hide a figure


def facts(
    step: Mapping[str, Any],
    steps: Sequence[Mapping[str, Any]],
    broken: str = "",
    limit_ms: float = nan,
    seats: Mapping[str, Any] | None = None,
) -> Facts:
    """Facts of `step`, one of `steps`: entries of knee.json.

    `seats`: `{"value", "from"}`, max_num_seqs of all engines together.
    """
    found: dict[str, Any] = {k: _number(step, *where) for k, where in SOURCES.items()}
    for name in SERVER_MS:
        found[f"{name}_ms"] = 1e3 * _number(step, "server", f"{name}_mean_s")
    fullest = _number(step, "server", "kv_usage_fullest_max")  # the engine that has least left
    found["kv_max"] = _number(step, "server", "kv_usage_max") if isnan(fullest) else fullest
    for name, key in (("gpu_util", "util_pct_mean"), ("gpu_memory_util", "memory_util_pct_mean")):
        found[name] = _number(step, "gpu", key) / 100
    fastest = [_number(one, "gpu", "sm_clock_mhz_max") for one in steps]
    found["clock_share"] = _over(found["clock_share"], max(fastest, key=_known, default=nan))
    found["throttled"] = str((step.get("gpu") or {}).get("throttled") or "")
    client = step.get("client") or {}
    found["client_cores"] = max((client.get("cpu") or {}).values(), default=nan)
    found["instrument_share"] = max((client.get("instrument_share") or {}).values(), default=nan)
    found["turnaround_ms"] = _number(client, "turnaround_ms", "p99")
    lowest = min(steps, key=lambda one: one["users"], default=step)
    found["low_users"] = float(lowest["users"])
    found["low_late_share"] = _number(lowest, "gaps", "late_share")
    found["memory_kept"] = _over(_memory_share(step), _memory_share(lowest))
    found["low_gap_ms"] = _number(lowest, "gaps", "p50_ms")
    if seats and seats.get("value"):
        found |= {"seats": float(seats["value"]), "seats_from": seats.get("from", "")}
    seconds = (step["end_ns"] - step["settled_ns"]) / 1e9
    return Facts(step["users"], seconds, broken, limit_ms, **found)


def _memory_share(entry: Mapping[str, Any]) -> float:
    """Of the time in which the GPU is busy, that in which it reads or writes memory."""
    memory = _number(entry, "gpu", "memory_util_pct_mean")
    return _over(memory, _number(entry, "gpu", "util_pct_mean"))


def _over(value: float, whole: float) -> float:
    return value / whole if whole > 0 else nan


def _known(value: float) -> float:
    return 0.0 if isnan(value) else value


def _number(entry: Mapping[str, Any], part: str, key: str) -> float:
    value = (entry.get(part) or {}).get(key)
    return float(value) if value is not None else nan
