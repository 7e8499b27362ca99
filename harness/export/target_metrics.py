"""Computes the exporter's metrics: samples in, values of TARGET and GPU out. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, Any, Final

from harness.export.metric_definitions import GPU
from harness.measure.diagnosis.gpu_window import GPU_SERIES, MIB, REASON_LABELS
from harness.measure.diagnosis.server_window import histogram_mean_s
from harness.measure.records.samples import samples_within
from harness.server.max_num_seqs import max_num_seqs
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.export.metric_definitions import Values
    from harness.measure.records.samples import GpuSample, ServerSample
    from harness.server.gpu import GpuInfo

WINDOW_NS: Final = 60 * SECOND  # over which means are taken
KEYS: Final = {one.name.removeprefix("harness_"): one.key for one in GPU}


@dataclass(frozen=True, slots=True)
class TargetState:
    """The state of the target after a scrape; `samples` since its last start, in order."""

    up: bool = False
    took_s: float = nan
    samples: Sequence[ServerSample] = ()
    cache: Mapping[str, Any] = field(default_factory=dict)  # probe.cache_summary
    read: Mapping[str, Any] = field(default_factory=dict)  # flags that the server shows
    given: Mapping[str, Any] = field(default_factory=dict)  # flags that the user gave
    target: str = ""  # HOST:PORT


def target_values(seen: TargetState, now_ns: int) -> Values:
    """Return the values of TARGET; those of a target that does not answer are left out."""
    values: dict[str, Any] = {"target_up": float(seen.up)}
    if seen.target:
        values["target_info"] = {(seen.target,): 1.0}
    if not seen.up or not seen.samples:
        return values
    last = seen.samples[-1]
    values["target_sample_age"] = (now_ns - last.at_ns) / SECOND
    values["target_scrape_duration"] = seen.took_s
    values["engine_cpu"] = last.engine_cpu_s
    tokens = seen.cache.get("kv_tokens")
    if tokens is not None:
        values["server_kv_tokens"] = float(tokens)
        values["server_kv_free_tokens"] = tokens * (1 - last.kv_usage)
    return values | _slots(seen, last) | _split(seen.samples)


def _slots(seen: TargetState, last: ServerSample) -> Values:
    flags, engines = {**seen.given, **seen.read}, seen.cache.get("engines")
    server = {"flags": flags, "read": tuple(seen.read), "engines": engines}
    found = max_num_seqs(server, seen.samples)
    if found.value is None:
        return {}
    return {
        "server_max_num_seqs": {(found.source.value,): found.slots},
        "server_slots_free": max(found.slots - last.running, 0.0),
    }


def _split(samples: Sequence[ServerSample]) -> Values:
    recent = samples_within(samples, samples[-1].at_ns - WINDOW_NS, samples[-1].at_ns)
    ttft, queue, prefill = (histogram_mean_s(recent, key) for key in ("ttft", "queue", "prefill"))
    parts = {"queue": queue, "prefill": prefill, "rest": ttft - queue - prefill}
    return {
        "server_ttft_mean": ttft,
        "server_ttft_part_mean": {(part,): value for part, value in parts.items()},
    }


def gpu_values(found: Sequence[GpuInfo], samples: Sequence[GpuSample], now_ns: int) -> Values:
    """Return the values of GPU from one sample per GPU."""
    if not samples:
        return {}
    values: dict[str, Any] = {
        "gpu_info": {(str(g.index), g.name, g.uuid, g.driver): 1.0 for g in found},
        "gpu_memory": {(str(g.index),): g.memory_mib * MIB or nan for g in found},
        "gpu_sample_age": (now_ns - samples[0].at_ns) / SECOND,
    }
    for name, (series, unit) in GPU_SERIES.items():
        values[KEYS[series]] = {(str(s.gpu),): getattr(s, name) * unit for s in samples}
    values["gpu_throttled"] = {
        (str(s.gpu), label): float(words in s.throttled)
        for s in samples
        if s.throttled is not None
        for words, label in REASON_LABELS.items()
    }
    return values
