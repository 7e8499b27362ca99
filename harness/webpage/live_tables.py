"""Live tables of a run, for Locust's web UI: exact percentiles, and how the SLOs fare.

Percentiles are of all values so far, until a latency has RECENT of them; then of the newest RECENT,
and its row says so. At 25,000 tokens/s the ITL row covers the last ten seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.metrics import LATENCIES, SLO_METRICS, failed_requests
from harness.measure.records.record_table import RecordTable
from harness.measure.records.request_record import Outcome
from harness.measure.search.statistics import MIN_TAIL, QUANTILES, quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.records.request_record import RequestRecord
    from harness.measure.slo import Slo

    Floats = NDArray[np.float64]

# a live view judges nothing: a verdict comes at the end, from all records
WITHIN, OVER, TOO_FEW = "within so far", "over so far", "too few requests"
RECENT: Final = 1 << 18  # values of each latency that the live table keeps: 2 MiB, 3 ms to sort


def ended(records: list[RequestRecord]) -> RecordTable:
    """Without parts of open ones."""
    return RecordTable.from_records([one for one in records if one.outcome is not Outcome.open])


class Ring:
    """The most recent values, all of them until `size` is reached."""

    def __init__(self, size: int) -> None:
        self._values = np.empty(size)
        self.total = 0  # ever added

    def extend(self, values: Floats) -> None:
        size = len(self._values)
        self.total += max(len(values) - size, 0)
        values = values[-size:]
        start = self.total % size
        head = min(len(values), size - start)
        self._values[start : start + head] = values[:head]
        self._values[: len(values) - head] = values[head:]
        self.total += len(values)

    def ordered(self) -> Floats:
        return np.sort(self._values[: min(self.total, len(self._values))])


class LatencyTable:
    """Live percentiles: exact over all requests so far, or over the most recent `size` values.

    Failures count as +infinity, as everywhere. Values are in ms.
    """

    def __init__(self, size: int = RECENT) -> None:
        self._size = size
        self.clear()

    def clear(self) -> None:
        """Forget everything (Locust's "Reset Stats")."""
        self.requests = 0
        self.failed = 0
        self._rings = {key: Ring(self._size) for key in LATENCIES}

    def put(self, records: list[RequestRecord]) -> None:
        """Take ended requests; parts of open ones are left out."""
        table = ended(records)
        self.requests += len(table)
        self.failed += int(failed_requests(table).sum())
        for key, ring in self._rings.items():
            seen = LATENCIES[key].observe(table)
            ring.extend(seen.hi_ns[~seen.only_age] / 1e6)

    def close(self) -> None:
        """Keep what is there: the page may still be read."""

    def rows(self) -> list[dict[str, str | int]]:
        """One row per latency: name, n, and its quantiles in ms as text ("-": none yet, "inf")."""
        return [self._row(key, ring) for key, ring in self._rings.items()]

    def _row(self, key: str, ring: Ring) -> dict[str, str | int]:
        ordered = ring.ordered()
        n = len(ordered)
        title = LATENCIES[key].title + (f" (newest {n:,})" if ring.total > n else "")
        cells: dict[str, str | int] = {"metric": title, "key": key, "n": n}
        for name, q in QUANTILES.items():
            cells[name] = f"{quantile(ordered, q):.2f}" if n else "-"
        cells["max"] = f"{ordered[-1]:.2f}" if n else "-"
        return cells


class SloTable:
    """Of each SLO, the exact share of observations over its limit so far; failures are over."""

    def __init__(self, slos: Sequence[Slo]) -> None:
        self.slos = list(slos)
        self.clear()

    def clear(self) -> None:
        self.n = [0] * len(self.slos)
        self.over = [0] * len(self.slos)

    def put(self, records: list[RequestRecord]) -> None:
        if not self.slos:
            return
        table = ended(records)
        for i, slo in enumerate(self.slos):
            seen = SLO_METRICS[slo.metric].observe(table)
            # what the harness cut off is over the limit once its age is, and else not known
            values = seen.hi_ns[~seen.only_age | (seen.lo_ns > slo.limit_ns)]
            self.n[i] += len(values)
            self.over[i] += int((values > slo.limit_ns).sum())

    def close(self) -> None:
        """Keep what is there."""

    def rows(self) -> list[dict[str, str]]:
        return [*map(self._row, self.slos, self.n, self.over)]

    def _row(self, slo: Slo, n: int, over: int) -> dict[str, str]:
        share = over / n if n else 0.0
        so_far = OVER if share > slo.allowed else WITHIN
        if n * slo.allowed < MIN_TAIL:
            so_far = TOO_FEW
        return {
            "slo": str(slo),
            "so_far": so_far,
            "over": f"{share:.2%}",
            "allowed": f"{slo.allowed:.2%}",
            "n": str(n),
        }
