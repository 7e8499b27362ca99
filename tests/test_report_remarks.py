"""Sentences beside the answer: the sweet spot, and a GPU that idles while requests wait."""

from __future__ import annotations

from math import nan
from types import SimpleNamespace
from typing import Any

import pytest

from harness.core.load import CONCURRENT, REQUESTS_PER_S, LoadUnit
from harness.core.run_kinds import kind_of
from harness.metrics.result import Latency, Level
from harness.records.samples import GpuSample
from harness.report.remarks import idle_gpu_sentence, sweet_spot_sentence
from harness.search.sweet_spot import SweetSpot, sweet_spot


def level(
    users: int, tokens_per_s: float = 0, e2e_ms: float = 1, p95_ttft_ms: float = nan, **more: Any
) -> Level:
    """With these figures alone."""
    latencies = {"e2e_ms": Latency(mean=e2e_ms), "ttft_ms": Latency(p95=p95_ttft_ms)}
    return Level(
        index=0, users=users, output_tokens_per_s=tokens_per_s, latencies=latencies, **more
    )


CURVE = [level(4, 400, 1000), level(8, 780, 1020), level(12, 900, 1200), level(16, 950, 1700)]


@pytest.mark.parametrize(
    ("levels", "want"),
    [
        (CURVE, SweetSpot(8, 12, 8)),  # 0.4, 0.76, 0.75, 0.56 tokens/s for a ms
        ([*CURVE[:2], CURVE[3]], SweetSpot(8, 8, 8)),
        (CURVE[:3], SweetSpot(8, 12, 8, is_highest=True)),
        (CURVE[::-1], SweetSpot(8, 12, 8)),  # in the order in which they were held
        ([*CURVE, level(8, 100, 1020)], SweetSpot(12, 12, 12)),  # held twice: 0.43 on average
        (CURVE[:2], None),
        ([], None),
    ],
)
def test_sweet_spot(levels: list[Level], want: SweetSpot | None) -> None:
    """Neighbors of the best level with 90% of its throughput over latency."""
    assert sweet_spot(levels) == want


@pytest.mark.parametrize(
    ("levels", "command", "unit", "want"),
    [
        (
            CURVE,
            "sweep",
            CONCURRENT,
            "Sweet spot: 8 to 12 users; each level there has at least 90% of",
        ),
        (
            CURVE[:3],
            "sweep",
            CONCURRENT,
            "Sweet spot: 8 to 12 users (the highest level held, so it may",
        ),
        (CURVE[1::2] + CURVE[:1], "knee", CONCURRENT, "Sweet spot: 8 concurrent requests; the "),
        (CURVE, "sweep", REQUESTS_PER_S, ""),
        (CURVE, "drill", CONCURRENT, ""),  # whose phases differ in more than their load
    ],
)
def test_sweet_spot_sentence(levels: list[Level], command: str, unit: LoadUnit, want: str) -> None:
    """A range, or one level."""
    facts = SimpleNamespace(
        used=levels,
        unit=unit,
        kind=kind_of(command),
        slos=(),
    )
    said = sweet_spot_sentence(facts)
    assert said[: len(want)] == want
    assert bool(said) == bool(want)
    facts.slos = ("ttft_p95=500ms",)
    assert sweet_spot_sentence(facts) == said.replace("spot", "spot, regardless of the SLO")


@pytest.mark.parametrize(
    ("ttft_ms", "busy_pct", "limit_ms", "at_once", "said"),
    [
        (812, (23,), 500, 0.0, True),
        (812, (23, 2, 0), 500, 0.0, True),
        (812, (90,), 500, 0.0, False),
        (812, (90, 0, 0, 0), 500, 0.0, False),  # the server uses one GPU of four
        (812, (float("nan"),), 500, 0.0, False),  # it does not say
        (812, (), 500, 0.0, False),  # no GPU was read
        (float("inf"), (23,), 500, 0.0, False),  # requests failed: that is not waiting
        (412, (23,), 500, 0.0, False),
        (812, (23,), float("nan"), 0.0, False),  # no SLO on it
        (812, (23,), 500, 0.9, False),  # a proxy collects answers: TTFT is e2e by another name
    ],
)
def test_idle_gpu(
    ttft_ms: float, busy_pct: tuple[float, ...], limit_ms: float, at_once: float, said: bool
) -> None:
    """TTFT over its limit while no GPU is busy half of the time."""
    window = {"settled_ns": 10, "end_ns": 20, "came_at_once": at_once}
    high = level(64, p95_ttft_ms=ttft_ms, **window)
    before = GpuSample(5, 0, 100.0)
    after = GpuSample(25, 0, 100.0)
    inside = []
    for gpu, pct in enumerate(busy_pct):
        inside += [GpuSample(12, gpu, pct - 2), GpuSample(18, gpu, pct + 2)]
    facts = SimpleNamespace(
        run=SimpleNamespace(gpu=[before, *inside, after]),
        used=[level(128, p95_ttft_ms=9e9), high],
        limit_ms=lambda _: limit_ms,
        unit=CONCURRENT,
    )
    want = "p95 TTFT is 812 ms at 64 concurrent requests while the GPUs are busy at most 23% of the"
    if said:
        assert idle_gpu_sentence(facts).startswith(want)
    else:
        assert idle_gpu_sentence(facts) == ""
