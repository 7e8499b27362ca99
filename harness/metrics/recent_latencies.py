"""The newest latencies of a run, for a live view: quantiles of the last seconds, in ms.

RunCounts feeds it, as it computes each value anyway. Values are kept for ten seconds and at most
MAX_VALUES of each latency, so that a look costs one small sort.
"""

from __future__ import annotations

from collections import deque
from math import inf, isnan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.metrics.metrics import LATENCIES
from harness.metrics.statistics import quantile
from harness.units import MS

if TYPE_CHECKING:
    from harness.core.arrays import Floats, Ints


LIVE_KEYS: Final = tuple(key for key, row in LATENCIES.items() if row.live)
LIVE_QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SPAN_S: Final = 10
MAX_VALUES: Final = 20_000  # values of each latency: half a millisecond to sort


class RecentLatencies:
    """`take` values as they come; `look` once a second."""

    def __init__(self, span_s: int = SPAN_S, max_values: int = MAX_VALUES) -> None:
        """`span_s`: how many looks a value stays; `max_values`: values kept of each latency."""
        self._max_values = max_values
        self._fresh: dict[str, list[Floats | Ints]] = {key: [] for key in LIVE_KEYS}
        self._seconds: dict[str, deque[Floats]] = {key: deque(maxlen=span_s) for key in LIVE_KEYS}

    def take(self, key: str, ns: Floats | Ints) -> None:
        """Values of one latency in ns, +inf for what failed."""
        if key in self._fresh and len(ns):
            self._fresh[key].append(ns)

    def clear(self) -> None:
        """Forget everything: another test begins."""
        for key in LIVE_KEYS:
            self._fresh[key].clear()
            self._seconds[key].clear()

    def look(self) -> list[float | str | None]:
        """p50, p95, p99 in ms of each of LIVE_KEYS; None: no value; "inf": too many failures."""
        return [value for key in LIVE_KEYS for value in self._quantiles(key)]

    def _quantiles(self, key: str) -> list[float | str | None]:
        seconds = self._seconds[key]
        fresh = np.concatenate([np.zeros(0), *self._fresh[key]])
        self._fresh[key].clear()
        seconds.append(fresh[-self._max_values :])
        newest_ns = np.concatenate(seconds)[-self._max_values :]
        ordered_ns = np.sort(newest_ns)
        return [_shown_ms(ordered_ns, q) for q in LIVE_QUANTILES.values()]


def _shown_ms(ordered_ns: Floats, q: float) -> float | str | None:
    ns = quantile(ordered_ns, q)
    if isnan(ns):
        return None
    if ns == inf:
        return "inf"
    return round(ns / MS, 2)
