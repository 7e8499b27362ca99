"""Builds PromQL for alerts, recording rules and panels; has the table of all series' names.

`back` is the range of a rate (`1m`), `by` the labels that a sum keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from harness.export.metric_definitions import METRIC_DEFINITIONS
from harness.measure.metrics import HISTOGRAMS
from harness.wire.vllm_series import SERIES

if TYPE_CHECKING:
    from collections.abc import Callable

HARNESS_SERIES: Final = {row.key: row.name for rows in METRIC_DEFINITIONS.values() for row in rows}
VLLM_SERIES: Final = {row.key: row for row in SERIES}
REPLICA: Final = "job, instance, model_name"


def series_names(key: str) -> list[str]:
    """Return vLLM's names of a series, the newest first."""
    return [spelling.name for spelling in VLLM_SERIES[key].spellings]


def newest_name(key: str) -> str:
    """Return vLLM's newest name of a series."""
    return series_names(key)[0]


def rate(series: str, back: str, by: str) -> str:
    """Return the rate per second, summed over all labels but `by`."""
    return f"sum by ({by}) (rate({series}[{back}]))"


def quantile(q: float, buckets: str) -> str:
    """Return the quantile as Prometheus estimates it, interpolated within a bucket."""
    return f"histogram_quantile({q}, {buckets})"


def quantile_of(q: float, histogram: str, back: str, by: str) -> str:
    """Return the quantile of a histogram by its name."""
    return quantile(q, rate(f"{histogram}_bucket", back, f"le, {by}"))


def finite_mean(key: str, part: Callable[[str, str], str]) -> str:
    """Return the mean of the finite values of a run's histogram.

    `part` makes the expression of a series from its suffix and its labels.
    """
    # Failures are infinite: our `_sum` leaves them out but `_count` does not, so the divisor is the
    # bucket with the largest finite bound.
    finite = f'le="{HISTOGRAMS[key].buckets_s[-2]}"'
    return f"{part('_sum', '')} / {part('_bucket', finite)}"


def label_selector(labels: str) -> str:
    """Return `{labels}`, or "" without labels."""
    return f"{{{labels}}}" if labels else ""
