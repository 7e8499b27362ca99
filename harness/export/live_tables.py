"""The live page's tables of a whole run: quantiles of each latency, the share over each SLO.

They judge nothing: the verdict comes at the end, from all records.
"""

from __future__ import annotations

import csv
import io
from math import isinf, isnan
from typing import TYPE_CHECKING, Any, Final

from harness.metrics.metrics import LATENCIES
from harness.metrics.numbers import percent_text
from harness.metrics.run_latencies import RunLatencies
from harness.metrics.statistics import MIN_TAIL, QUANTILES
from harness.units import MS

if TYPE_CHECKING:
    from harness.core.arrays import Floats, Ints
    from harness.metrics.run_counts import RunCounts
    from harness.metrics.run_latencies import LatencyBins
    from harness.metrics.slo import Slo

WITHIN: Final = "within so far"
OVER: Final = "over so far"
TOO_FEW: Final = "too few requests"
CSV_COLUMNS: Final = ("key", "metric", "n", *QUANTILES, "max")


class LiveTables:
    """Of one run after another: all values since the run began, or since the last `clear`."""

    def __init__(self, counts: RunCounts) -> None:
        """`counts`: of the run that is shown first."""
        self._latencies = RunLatencies()
        self.begin(counts)

    def begin(self, counts: RunCounts, *, with_slos: bool = True) -> None:
        """Another run begins. A search judges each level by itself: it is shown without SLOs."""
        self._counts = counts
        self._with_slos = with_slos
        self.clear()

    def clear(self) -> None:
        """Forget what has been counted ("Reset" on Locust's own page)."""
        self._latencies.clear()
        self._observed_before = list(self._counts.observed)
        self._missed_before = list(self._counts.missed)

    def take(self, key: str, ns: Floats | Ints) -> None:
        """New values of one latency in ns, as RunCounts tells them."""
        self._latencies.take(key, ns)

    def rows(self) -> dict[str, Any]:
        """Both tables: `latencies` with name, n, QUANTILES and the largest value, and `slos`.

        Values are in ms; None: no value yet; "inf": too many requests failed.
        """
        latencies = []
        for key, bins in self._latencies.look().items():
            values = [_shown(ms) for ms in _values_ms(bins)]
            name = LATENCIES[key].name
            latencies.append([name, bins.n, *values])
        return {"latencies": latencies, "slos": self.slo_rows()}

    def slo_rows(self) -> list[dict[str, str | int]]:
        """Of each SLO, the exact share of observations over its limit; failures are over."""
        if not self._with_slos:
            return []
        rows = []
        for i, slo in enumerate(self._counts.slos):
            observed = self._counts.observed[i] - self._observed_before[i]
            missed = self._counts.missed[i] - self._missed_before[i]
            rows.append(_slo_row(slo, observed, missed))
        return rows

    def csv(self) -> str:
        """The latencies with CSV_COLUMNS as the header, in ms; "-": no value yet."""
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(CSV_COLUMNS)
        for key, bins in self._latencies.look().items():
            cells = ["-" if isnan(ms) else f"{ms:.2f}" for ms in _values_ms(bins)]
            title = LATENCIES[key].title
            writer.writerow([key, title, bins.n, *cells])
        return text.getvalue()


def _values_ms(bins: LatencyBins) -> list[float]:
    """QUANTILES and the largest value."""
    quantiles = [bins.quantile(q) / MS for q in QUANTILES.values()]
    return [*quantiles, bins.max_ns / MS]


def _shown(ms: float) -> float | str | None:
    if isnan(ms):
        return None
    if isinf(ms):
        return "inf"
    return round(ms, 2)


def _slo_row(slo: Slo, n: int, over: int) -> dict[str, str | int]:
    share = over / n if n else 0.0
    if n * slo.allowed < MIN_TAIL:
        so_far = TOO_FEW
    elif share > slo.allowed:
        so_far = OVER
    else:
        so_far = WITHIN
    return {
        "slo": str(slo),
        "so_far": so_far,
        "over": f"{share:.2%}",
        "allowed": percent_text(slo.allowed),
        "n": n,
    }
