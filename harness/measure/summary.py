"""The figures of a window: the blocks of summary.json and of each step, as plain JSON values."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.measure.evidence import FEWEST_BLOCKS, MOST_BLOCKS, lifetime_ns
from harness.measure.metrics import METRICS, Observed, failed, tpot, ttft
from harness.measure.stats import (
    QUANTILES,
    block_of,
    effective_n,
    quantile,
    quantile_interval,
    reportable,
)
from harness.measure.table import OK, OUTCOMES
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.slo import Slo
    from harness.measure.table import RecordTable

    Ints = NDArray[np.int64]

Json = dict[str, Any]


def say_ms(ns: float) -> float | str | None:
    """Milliseconds for JSON: "inf" for what failed, None for what is not known."""
    if math.isnan(ns):
        return None
    return "inf" if math.isinf(ns) else round(ns / MS, 6)


def block_ns_of(table: RecordTable, start_ns: int, end_ns: int) -> int:
    """Length of the window's time blocks: at least one mean lifetime, 4 to 24 of them."""
    length = max(end_ns - start_ns, 1)
    count = np.clip(length / max(lifetime_ns(table), 1), FEWEST_BLOCKS, MOST_BLOCKS)
    return -(-length // int(count))


def in_window(seen: Observed, table: RecordTable, key: str, start: int, end: int) -> Observed:
    """Requests by when they were sent, gaps by when they ended; a gap's `at_ns` places it."""
    at = seen.at_ns if key == "itl" else table.sent_ns[seen.row]
    keep = (at >= start) & (at <= end)
    return Observed(seen.ns[keep], seen.lo_ns[keep], seen.hi_ns[keep], at[keep], seen.row[keep])


def pooled_block(table: RecordTable, key: str, windows: Sequence[tuple[int, int]]) -> Json:
    """One latency over several windows of the same level: their blocks side by side."""
    observe = METRICS[key].observe
    assert observe is not None  # noqa: S101 - asked for latencies only
    whole, seen, blocks, before = observe(table), [], [], 0
    for start, end in windows:
        part = in_window(whole, table, key, start, end)
        own = block_of(part.at_ns, start, block_ns_of(table, start, end))
        seen.append(part)
        blocks.append(own + before)
        before += MOST_BLOCKS + 1
    joined = Observed(
        *(np.concatenate([getattr(s, f.name) for s in seen]) for f in fields(Observed))
    )
    return block(joined, np.concatenate(blocks))


def block(seen: Observed, blocks: Ints) -> Json:
    """n, n_failed, effective_n, mean, quantiles, max of one latency; ms. `blocks`: of time.

    Each quantile has `..._ci95` (sampling) and `..._instrument` beside it, as [lo, hi].
    """
    n = len(seen.ns)
    fine = np.isfinite(seen.ns)
    ordered, low, high = np.sort(seen.ns), np.sort(seen.lo_ns), np.sort(seen.hi_ns)
    p95 = quantile(ordered, 0.95)
    out: Json = {
        "n": n,
        "n_failed": int((~fine).sum()),
        "effective_n": round(effective_n(seen.ns > p95, blocks)) if n else 0,
        "mean": say_ms(float(seen.ns[fine].mean())) if fine.any() else None,
        "max": say_ms(float(seen.ns[fine].max())) if fine.any() else None,
    }
    for name, q in QUANTILES.items():
        known = reportable(n, q)
        interval = quantile_interval(seen.ns, blocks, q) if known else None
        out[name] = say_ms(quantile(ordered, q)) if known else None
        out[f"{name}_ci95"] = interval and [say_ms(interval.lo), say_ms(interval.hi)]
        out[f"{name}_instrument"] = (
            [say_ms(quantile(low, q)), say_ms(quantile(high, q))] if known else None
        )
    return out


def good_requests(table: RecordTable, slos: Sequence[Slo]) -> NDArray[np.bool_]:
    """Requests that ended well and met every SLO by their own figures."""
    good = np.asarray(table.outcome == OK)
    for slo in slos:
        observe = METRICS[slo.metric].observe
        seen = tpot(table) if slo.metric == "itl" else (observe or ttft)(table)
        good[seen.row[seen.ns > slo.limit_ns]] = False
    return good


def window_summary(
    table: RecordTable, start_ns: int, end_ns: int, slos: Sequence[Slo] = ()
) -> Json:
    """All figures of a window, in the shape of summary.json.

    Source: requests sent in it (latencies, outcomes), events that arrived in it (throughput).
    """
    seconds = max(end_ns - start_ns, 1) / SECOND
    block_ns = block_ns_of(table, start_ns, end_ns)
    out: Json = {}
    for metric in METRICS.values():
        if metric.observe is not None:
            seen = in_window(metric.observe(table), table, metric.key, start_ns, end_ns)
            blocks = block_of(seen.at_ns, start_ns, block_ns)
            out[f"{metric.key}_ms"] = block(seen, blocks)
    arrived = (table.at_ns >= start_ns) & (table.at_ns <= end_ns)
    ended = (table.done_ns >= start_ns) & (table.done_ns <= end_ns)
    sent = (table.sent_ns >= start_ns) & (table.sent_ns <= end_ns)
    out["output_tokens_per_s"] = round(float(table.tokens[arrived].sum()) / seconds, 3)
    out["requests_per_s"] = round(float((ended & (table.outcome == OK)).sum()) / seconds, 4)
    good = good_requests(table, slos)
    out["goodput_per_s"] = round(float((ended & good).sum()) / seconds, 4)
    counts = np.bincount(table.outcome[sent], minlength=len(OUTCOMES))
    out["outcomes"] = {str(o): int(c) for o, c in zip(OUTCOMES, counts, strict=True) if c}
    out["n_failed"] = int((failed(table) & sent).sum())
    exact = table.not_before_ns[arrived] == table.at_ns[arrived]
    out["exact_share"] = round(float(exact.mean()), 6) if len(exact) else None
    return out
