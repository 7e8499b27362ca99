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
    reports = [report for report in figures if report]
    if not reports:
        return {}
    merged: dict[str, Any] = {}
    for key in SUMS:
        total = sum(report.get(key) or 0 for report in reports)
        merged[key] = round(total, 3)
    for key in WORST:
        merged[key] = max(report.get(key) or 0.0 for report in reports)
    merged["processes"] = len(reports)
    sources = [report["stamp_source"] for report in reports]
    merged["stamp_source"] = _common(sources, "read")
    addresses: set[str] = set()
    for report in reports:
        addresses.update(report.get("addresses", ()))
    merged["addresses"] = sorted(addresses)
    readers = [report["reader"] for report in reports]
    merged["reader"] = _common(readers, IN_PYTHON)
    n_exact = 0.0
    for report in reports:
        exact_share = report["exact_share"] or 0.0
        n_exact += exact_share * report["events"]
    n_events = merged["events"]
    merged["exact_share"] = round(n_exact / n_events, 6) if n_events else None
    return merged


def _common(values: Sequence[str], otherwise: str) -> str:
    """What all of them are, if they are the same."""
    return values[0] if len(set(values)) == 1 else otherwise


def client_samples(
    by_worker: dict[int, dict[str, Any]], now_ns: int, lag_ms: float
) -> list[ClientSample]:
    """One line for each worker, its decoder and this process, whose loop lag is `lag_ms`."""
    cpu_s = round(time.process_time(), 3)
    samples = [ClientSample(now_ns, "main", cpu_s, lag_ms)]
    for worker, report in sorted(by_worker.items()):
        # It has not begun to measure: its driver runs, its reader does not.
        if "at_ns" not in report:
            continue
        at_ns = int(report["at_ns"])
        sender = ClientSample(
            at_ns,
            f"worker {worker}",
            report["cpu_s"],
            float(report["loop_lag_recent_ms"]),
            reads=int(report["reads"]),
            stamped_reads=int(report["stamped_reads"]),
            clock_steps=int(report["clock_steps"]),
        )
        decoder = ClientSample(at_ns, f"decoder {worker}", report["decoder_cpu_s"])
        samples += [sender, decoder]
    return samples
