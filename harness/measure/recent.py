"""The newest latencies of a run, for a live view: quantiles of the last seconds, in ms.

Fed by RunCounts, which computes each value anyway; here they only wait, ten seconds at most and no
more than MOST of each, so that a look costs one small sort.
"""

from __future__ import annotations

from collections import deque
from math import inf, isnan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.stats import quantile
from harness.units import MS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

KEYS: Final = ("ttft", "itl", "tpot")
SHOWN: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SPAN_S: Final = 10
MOST: Final = 20_000  # values of each latency: half a millisecond to sort


class Recent:
    """`take` values as they come; `look` once a second."""

    def __init__(self, span_s: int = SPAN_S, most: int = MOST) -> None:
        """`span_s`: how many looks a value stays; `most`: values kept of each latency."""
        self._most = most
        self._fresh: dict[str, list[Floats | Ints]] = {key: [] for key in KEYS}
        self._seconds: dict[str, deque[Floats]] = {key: deque(maxlen=span_s) for key in KEYS}

    def take(self, key: str, ns: Floats | Ints) -> None:
        """Values of one latency in ns, +inf for what failed."""
        if key in self._fresh and len(ns):
            self._fresh[key].append(ns)

    def clear(self) -> None:
        """Another test begins."""
        for key in KEYS:
            self._fresh[key].clear()
            self._seconds[key].clear()

    def look(self) -> list[float | str | None]:
        """p50, p95, p99 in ms of each of KEYS; None: none yet; "inf": so many requests failed."""
        return [value for key in KEYS for value in self._quantiles(key)]

    def _quantiles(self, key: str) -> list[float | str | None]:
        seconds, fresh = self._seconds[key], self._fresh[key]
        seconds.append(np.concatenate(fresh)[-self._most :].astype(float) if fresh else np.zeros(0))
        fresh.clear()
        ordered = np.sort(np.concatenate(seconds)[-self._most :])
        return [_shown(ordered, q) for q in SHOWN.values()]


def _shown(ordered: Floats, q: float) -> float | str | None:
    ns = quantile(ordered, q)
    return None if isnan(ns) else "inf" if ns == inf else round(ns / MS, 2)
