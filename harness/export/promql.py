"""The one PromQL builder, for alerts, recording rules and panels, and the one table of names.

`back` is what a rate looks back over (`1m`), `by` the labels that a sum keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from harness.export.exported import EXPORTED
from harness.measure.metrics import HISTOGRAMS
from harness.wire.vllm_series import SERIES

if TYPE_CHECKING:
    from collections.abc import Callable

OURS: Final = {row.key: row.name for rows in EXPORTED.values() for row in rows}
SERVER: Final = {row.key: row for row in SERIES}
REPLICA: Final = "job, instance, model_name"


def spelled(key: str) -> list[str]:
    """VLLM's names of a series, the newest first."""
    return [spelling.name for spelling in SERVER[key].spellings]


def newest(key: str) -> str:
    """The first of these."""
    return spelled(key)[0]


def rate(series: str, back: str, by: str) -> str:
    """Per second, added up over what `by` leaves out."""
    return f"sum by ({by}) (rate({series}[{back}]))"


def quantile(q: float, buckets: str) -> str:
    """Interpolated in its bucket, as Prometheus does."""
    return f"histogram_quantile({q}, {buckets})"


def quantile_of(q: float, histogram: str, back: str, by: str) -> str:
    """The same of a histogram by its name."""
    return quantile(q, rate(f"{histogram}_bucket", back, f"le, {by}"))


def finite_mean(key: str, part: Callable[[str, str], str]) -> str:
    """The mean of a run's histogram, of what is finite; `part` is told a suffix and labels.

    A run's sums leave failures out, its counts do not.
    """
    finite = f'le="{HISTOGRAMS[key].buckets_s[-2]}"'
    return f"{part('_sum', '')} / {part('_bucket', finite)}"


def braced(labels: str) -> str:
    """`{labels}`; "" for none."""
    return f"{{{labels}}}" if labels else ""
