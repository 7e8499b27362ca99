"""The load processes' figures about themselves, made one for all: the worst, or the sum."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from harness.reader.backends import IN_PYTHON
from harness.records.samples import ClientSample

SUMS: Final = (
    "events", "reads", "cpu_s", "decoder_cpu_s", "decoder_backlog", "decoder_held", "clock_steps",
    "resent",
)  # fmt: skip
WORST: Final = ("loop_lag_p99_ms", "loop_lag_max_ms", "decoder_hold_max_ms", "clock_apart_ms")


def merge(figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One for all processes.

    `stamp_source` is "kernel" only if it is everywhere, as `reader` is "c"; `exact_share` is over
    all events.
    """
    some = [f for f in figures if f]
    if not some:
        return {}
    merged: dict[str, Any] = {key: round(sum(f.get(key) or 0 for f in some), 3) for key in SUMS}
    merged |= {key: max((f.get(key) or 0.0 for f in some), default=None) for key in WORST}
    sources = {f["stamp_source"] for f in some}
    readers = {f["reader"] for f in some}
    exact = sum((f["exact_share"] or 0.0) * f["events"] for f in some)
    return merged | {
        "processes": len(some),
        "stamp_source": sources.pop() if len(sources) == 1 else "read",
        "addresses": sorted({a for f in some for a in f.get("addresses", ())}),
        "reader": readers.pop() if len(readers) == 1 else IN_PYTHON,
        "exact_share": round(exact / merged["events"], 6) if merged["events"] else None,
    }


def client_samples(
    by_worker: dict[int, dict[str, Any]], now_ns: int, lag_ms: float
) -> list[ClientSample]:
    """One line for each worker, its decoder and this process, whose loop lag is `lag_ms`."""
    out = [ClientSample(now_ns, "main", round(time.process_time(), 3), lag_ms)]
    for worker, said in sorted(by_worker.items()):
        if "at_ns" not in said:
            continue
        at_ns = int(said["at_ns"])
        counts = {key: int(said[key]) for key in ("reads", "stamped_reads", "clock_steps")}
        lag = float(said["loop_lag_recent_ms"])
        out.append(ClientSample(at_ns, f"worker {worker}", said["cpu_s"], lag, **counts))
        out.append(ClientSample(at_ns, f"decoder {worker}", said["decoder_cpu_s"]))
    return out
