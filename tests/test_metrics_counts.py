"""What a run counts for Prometheus: equal to what METRICS says, however its records came."""

from __future__ import annotations

import time
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from counted import expected, records, with_parts
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.metrics.metrics import HISTOGRAMS
from harness.metrics.run_counts import HistogramCounter, RunCounts
from harness.metrics.slo import Slo
from harness.records.histogram import bucket_ladder
from harness.records.record_table import RecordTable
from harness.records.request_record import Outcome, RequestRecord, ns_array

if TYPE_CHECKING:
    from collections.abc import Callable

MS = 1_000_000
LIMITS = ("ttft_p95=50ms", "itl_p95=50ms", "tpot_p99=40ms", "e2e_p90=2s", "ttfot_p95=1s")
SLOS = tuple(map(Slo.parse, LIMITS))


def counted(counts: RunCounts) -> dict[str, Any]:
    """In the shape of `expected`."""
    latency = {}
    for key, counter in counts.latency.items():
        histogram = counter.histogram()
        latency[key] = (histogram.counts, histogram.sum)
    return {
        "latency": latency,
        "outcomes": counts.outcomes,
        "output_tokens": counts.output_tokens,
        "prompt_tokens": counts.prompt_tokens,
        "good": counts.good,
        "observed": counts.observed,
        "missed": counts.missed,
    }


def test_whole_records_are_what_metrics_says():
    """400 requests, ok and failed: every bucket, sum and counter."""
    whole = records(1, 400)
    counts = RunCounts(SLOS)
    counts.put(whole)
    assert counted(counts) == expected(RecordTable.from_records(whole), SLOS)


def interleaved(lines: list[list[Any]], seed: int) -> list[Any]:
    """The messages of all, each line's in their order, the lines mixed."""
    rng = np.random.default_rng(seed)
    stream = []
    while any(lines):
        unsent = [i for i, line in enumerate(lines) if line]
        stream.append(lines[rng.choice(unsent)].pop(0))
    return stream


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1000),
    cuts=st.lists(st.lists(st.floats(0, 1), max_size=4), min_size=12, max_size=12),
    again=st.lists(st.booleans(), min_size=12, max_size=12),
    size=st.integers(1, 9),
)
def test_parts_change_nothing(seed, cuts, again, size):
    """However requests were cut, interleaved, batched, and even if one's messages come twice."""
    whole = records(seed, 12)
    lines = []
    for record, places, twice in zip(whole, cuts, again, strict=True):
        messages = with_parts(record, places)
        lines.append(messages * 2 if twice else messages)
    stream = interleaved(lines, seed)
    counts = RunCounts(SLOS)
    for start in range(0, len(stream), size):
        counts.put(stream[start : start + size])
    assert counted(counts) == expected(RecordTable.from_records(whole), SLOS)


def test_an_event_counts_when_its_part_arrives():
    """TTFT and gaps are there before the request has ended; its end adds the rest, once."""
    at = ns_array([200 * MS, 220 * MS, 260 * MS])
    whole = RequestRecord(
        0,
        0,
        0,
        100 * MS,
        300 * MS,
        Outcome.ok,
        planned_tokens=3,
        at_ns=at,
        not_before_ns=at,
        tokens=ns_array([1, 1, 1]),
    )
    counts = RunCounts()
    seen = []
    for record in with_parts(whole, [0.3, 0.7]):
        counts.put([record])
        histograms = [counts.latency[key].histogram() for key in ("ttft", "itl", "e2e")]
        seen.append([histogram.count for histogram in histograms])
    assert seen == [[1, 0, 0], [1, 1, 0], [1, 2, 1]]
    assert counts.latency["itl"].histogram().sum == 0.06
    assert counts.latency["tpot"].histogram().sum == 0.03  # (260 - 200) / 2


@pytest.mark.parametrize(
    ("ns", "bucket"),
    [(0, 0.0005), (500_000, 0.0005), (500_001, 0.0006), (50 * MS, 0.05), (50 * MS + 1, 0.06),
     (10_000 * MS, 10.0), (10_000 * MS + 1, inf), (inf, inf)],
)  # fmt: skip
def test_a_bound_belongs_to_its_bucket(ns, bucket):
    """As Prometheus has it: at most the bound."""
    counts = HistogramCounter(HISTOGRAMS["itl"].buckets_s)
    counts.add(np.array([ns]))
    found = counts.histogram()
    assert found.bounds[found.counts.index(1.0)] == bucket
    assert found.sum == (0.0 if ns == inf else ns / 1e9)


def test_bounds():
    """Ten to a decade, whole microseconds, +Inf at the end; what people promise is a bound."""
    assert bucket_ladder(1_000, 10_000) == (
        0.001,
        0.00125,
        0.0015,
        0.002,
        0.0025,
        0.003,
        0.004,
        0.005,
        0.006,
        0.008,
        0.01,
        inf,
    )
    promised = {"ttft": (0.2, 0.5, 1, 2, 5), "itl": (0.02, 0.05, 0.1), "e2e": (10, 30, 60)}
    for key, limits_s in promised.items():
        assert set(limits_s) <= set(HISTOGRAMS[key].buckets_s), key
    widest = 1.0
    for row in HISTOGRAMS.values():
        finite_s = row.buckets_s[:-1]
        ratios = [upper / lower for lower, upper in pairwise(finite_s)]
        widest = max(widest, *ratios)
    assert widest == pytest.approx(4 / 3)


def test_cost(figure: Callable[[str], None]) -> None:
    """CPU per token in the process that counts, for whole records and for parts of a second."""
    at = ns_array([(200 + 20 * i) * MS for i in range(128)])
    ones = ns_array([1] * 128)
    whole = [
        RequestRecord(
            0,
            n,
            n,
            0,
            4_000 * MS,
            Outcome.ok,
            planned_tokens=128,
            at_ns=at,
            not_before_ns=at,
            tokens=ones,
        )
        for n in range(4_000)
    ]
    cut = [part for record in whole[:2_000] for part in with_parts(record, [0.33, 0.66])]
    told = []
    for what, stream, tokens in (("whole", whole, 4_000 * 128), ("in 3 parts", cut, 2_000 * 128)):
        counts = RunCounts(SLOS[:2])
        begun = time.process_time()
        for start in range(0, len(stream), 500):
            counts.put(stream[start : start + 500])
        spent = time.process_time() - begun
        told.append(f"{spent / tokens * 1e6:.3f} us a token ({what})")
        assert counts.output_tokens == tokens
    figure(f"RunCounts: {', '.join(told)}, 128 tokens a request")
