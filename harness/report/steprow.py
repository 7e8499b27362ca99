"""One step of a run as reports read it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.report.say import Figure, as_float
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class StepRow:
    """One step of steps.jsonl or knee.json; figures that it lacks are NaN."""

    data: Mapping[str, Any]

    @property
    def index(self) -> int:
        """Its place in the run, from 0."""
        return int(as_int(self.data.get("index")))

    @property
    def users(self) -> int:
        """Concurrent requests held."""
        return int(as_int(self.data.get("users")))

    @property
    def decision(self) -> str:
        """good, bad, undecided or invalid."""
        return str(self.data.get("decision") or "undecided")

    @property
    def window(self) -> tuple[int, int, int]:
        """start_ns, settled_ns, end_ns."""
        start, settled, end = (
            int(as_int(self.data.get(k))) for k in ("start_ns", "settled_ns", "end_ns")
        )
        return start, settled, end

    @property
    def chosen_ns(self) -> int:
        """When its level was asked for; the load gets there by the window's start."""
        return as_int(self.data.get("chosen_ns")) or self.window[0]

    @property
    def seconds(self) -> float:
        """Measured, after the warm-up."""
        return (self.window[2] - self.window[1]) / SECOND

    def latency(self, metric: str, statistic: str = "p95") -> Figure:
        """A statistic of ttft, itl, tpot, e2e or ttfot, in ms."""
        block = self.data.get(f"{metric}_ms")
        found = Figure.of(block if isinstance(block, dict) else None, statistic, "ms")
        return found if found.known else Figure.of(self.data, f"{metric}_{statistic}_ms", unit="ms")

    def figure(self, key: str, unit: str = "") -> Figure:
        """A figure of the step itself: output_tokens_per_s, requests_per_s, goodput_per_s, n."""
        return Figure.of(self.data, key, unit)

    def part(self, key: str) -> dict[str, Any]:
        """A nested object: server, little, audit, over_share, outcomes; {} when there is none."""
        value = self.data.get(key)
        return value if isinstance(value, dict) else {}


def as_int(value: Any) -> int:
    """An integer of JSON, 0 when it is none."""
    number = as_float(value)
    return int(value) if math.isfinite(number) else 0
