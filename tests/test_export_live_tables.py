"""The live page's tables of a whole run: quantiles of all values, exact shares over each SLO."""

from __future__ import annotations

from array import array
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from harness.export.live_tables import LiveTables
from harness.metrics.metrics import LATENCIES
from harness.metrics.run_counts import RunCounts
from harness.metrics.run_latencies import RunLatencies
from harness.metrics.slo import Slo
from harness.metrics.statistics import QUANTILES, quantile
from harness.records.request_record import Outcome, RequestRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

MS = 1_000_000
BIN = 1 / 1024  # the width of a bin, by its values


def record(
    number: int, ttft_ms: int, gaps: int = 2, outcome: Outcome = Outcome.ok
) -> RequestRecord:
    """A request whose first token came after `ttft_ms`, then `gaps` more every 10 ms."""
    at = [(ttft_ms + 10 * i) * MS for i in range(gaps + 1)] if outcome is Outcome.ok else []
    return RequestRecord(
        0,
        number,
        0,
        0,
        at[-1] if at else ttft_ms * MS,
        outcome,
        planned_tokens=gaps + 1,
        answer_index=0,
        at_ns=array("q", at),
        not_before_ns=array("q", at),
        tokens=array("q", [1] * len(at)),
    )


def fed(slos: Sequence[Slo] = ()) -> tuple[RunCounts, LiveTables]:
    """A run's counters, and the tables of that run."""
    tables = LiveTables(RunCounts())
    counts = RunCounts(slos, tap=tables.take)
    tables.begin(counts)
    return counts, tables


def row(tables: LiveTables, key: str) -> list[Any]:
    """The cells of one latency."""
    cells: list[Any] = tables.rows()["latencies"][list(LATENCIES).index(key)]
    return cells


def test_values_apart_have_exact_quantiles() -> None:
    """TTFTs 1 .. 200 ms: p50 is the one of rank ceil(0.5 x 199) = 100, 101 ms; p95 of rank 190."""
    counts, tables = fed()
    counts.put([record(n, n + 1) for n in range(200)])
    assert row(tables, "ttft") == ["TTFT", 200, 101.0, 181.0, 191.0, 199.0, 200.0, 200.0]
    assert row(tables, "itl") == ["ITL", 400, *[10.0] * 6]
    header, *lines = tables.csv().splitlines()
    assert header == "key,metric,n,p50,p90,p95,p99,p999,max"
    assert lines[0] == "ttft,Time to first token,200,101.00,181.00,191.00,199.00,200.00,200.00"


def test_a_run_without_values() -> None:
    """No figure is made up."""
    _, tables = fed()
    got = [row(tables, key)[1:] for key in LATENCIES]
    assert got == [[0, *[None] * 6]] * len(LATENCIES)
    assert tables.csv().splitlines()[1] == "ttft,Time to first token,0,-,-,-,-,-,-"


def test_failures_are_infinite_and_parts_are_left_out() -> None:
    """30 of 100 failed: p50 is finite, p90 is inf; a part of an open request changes nothing."""
    counts, tables = fed()
    counts.put([record(n, 100) for n in range(70)])
    counts.put([record(n, 5, outcome=Outcome.timeout) for n in range(70, 100)])
    counts.put([record(100, 1, outcome=Outcome.open)])
    _, n, p50, p90, *_, largest = row(tables, "ttft")
    assert n == 100
    assert p50 == 100.0
    assert p90 == "inf"
    assert largest == "inf"
    tables.clear()
    assert row(tables, "ttft")[1] == 0


@pytest.mark.parametrize("pieces", [[0], [1], [3, 0, 9], [1] * 200, [50_000, 1, 50_000]])
def test_all_values_count_however_they_come(pieces: list[int]) -> None:
    """Within 0.1% of the order statistics of all of them, the largest exact."""
    latencies = RunLatencies()
    rng = np.random.default_rng(1)
    values = [rng.lognormal(16, 1.5, size) for size in pieces]
    for piece in values:
        latencies.take("itl", piece)
    seen = latencies.look()["itl"]
    ordered = np.sort(np.concatenate(values))
    assert seen.n == len(ordered)
    got = [seen.quantile(q) for q in QUANTILES.values()]
    want = [quantile(ordered, q) for q in QUANTILES.values()]
    assert got == pytest.approx(want, rel=BIN, nan_ok=True)
    assert seen.max_ns == pytest.approx(quantile(ordered, 1.0), rel=1e-12, nan_ok=True)


@pytest.mark.parametrize(("failed", "want"), [(50, 10.0), (51, inf)])
def test_the_rank_of_failures(failed: int, want: float) -> None:
    """Of 101 values the median is the 51st: a failure, if there are so many."""
    latencies = RunLatencies()
    latencies.take("e2e", np.array([10.0] * (101 - failed)))
    latencies.take("e2e", np.array([inf] * failed))
    assert latencies.look()["e2e"].quantile(0.5) == want


@pytest.mark.parametrize(
    ("n", "slow", "so_far", "over"),
    [
        (200, 5, "within so far", "2.50%"),
        (200, 11, "over so far", "5.50%"),
        (200, 10, "within so far", "5.00%"),  # 5% over 500 ms is still a p95 of 500 ms
        (199, 199, "too few requests", "100.00%"),  # a p95 needs 200
    ],
)
def test_slos_are_told_by_the_exact_share(n: int, slow: int, so_far: str, over: str) -> None:
    """Of n requests so many took 600 ms; after a reset only what comes then counts."""
    counts, tables = fed([Slo.parse("ttft_p95=500ms")])
    counts.put([record(i, 600 if i < slow else 400) for i in range(n)])
    told = {"slo": "ttft_p95=500ms", "so_far": so_far, "over": over, "allowed": "5%"}
    assert tables.rows()["slos"] == [told | {"n": n}]
    tables.clear()
    counts.put([record(n, 600)])
    assert [(one["over"], one["n"]) for one in tables.rows()["slos"]] == [("100.00%", 1)]


def test_a_search_has_no_shares() -> None:
    """It judges each level by itself; nothing of the run before it stays."""
    counts, tables = fed([Slo.parse("ttft_p95=500ms")])
    counts.put([record(0, 600)])
    tables.begin(RunCounts([Slo.parse("ttft_p95=1s")]), with_slos=False)
    assert tables.rows()["slos"] == []
    assert row(tables, "ttft")[1] == 0
