"""What a package imports that adds a workload or a latency; docs/api.md shows one of each.

Layer 5: names of lower rooms, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from harness.records.histogram import bucket_ladder

if TYPE_CHECKING:
    from harness.load.lengths import Lengths
    from harness.load.workloads import Conversation, Workload
    from harness.metrics.metrics import LatencyMetric, Observations, e2e, tpot, ttfot, ttft
    from harness.records.record_table import RecordTable

__all__ = [
    "Conversation",
    "Lengths",
    "Observations",
    "RecordTable",
    "Workload",
    "e2e",
    "latency",
    "tpot",
    "ttfot",
    "ttft",
]
MODULES: Final = {
    "Conversation": "harness.load.workloads",
    "Lengths": "harness.load.lengths",
    "RecordTable": "harness.records.record_table",
    "Workload": "harness.load.workloads",
}
BUCKETS_S: Final = bucket_ladder(500, 1_000_000_000)


def __getattr__(name: str) -> Any:
    """Import it when it is asked for.

    METRICS imports the packages that add to it, and these import this module: it must be whole.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(MODULES.get(name, "harness.metrics.metrics"))
    return getattr(module, name)


def latency(
    key: str,
    name: str,
    title: str,
    definition: str,
    observe: Callable[[RecordTable], Observations],
    *,
    headline: bool = False,
) -> LatencyMetric:
    """A latency with one observation per request at most, in ms for people.

    `key`: as `ttft` is in the SLO ttft_p95=500ms and in result.json's ttft_ms. `name`: in a
    table's head.
    `headline`: its p95 is in the report's level table, too.
    """
    from harness.metrics.metrics import LatencyMetric  # noqa: PLC0415 - as above

    prometheus = f"harness_{key}_seconds"
    return LatencyMetric(
        key,
        name,
        title,
        definition,
        prometheus,
        "ms",
        observe,
        buckets_s=BUCKETS_S,
        counted="Counted when the request ends; +Inf when it fails.",
        headline=headline,
    )
