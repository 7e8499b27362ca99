"""Sinks: the live tables state exact figures, and one broken sink harms no other."""

from __future__ import annotations

import sys
from array import array

import numpy as np
import pytest

from harness.metrics.run_counts import RunCounts
from harness.metrics.slo import Slo
from harness.records.request_record import Outcome, RequestRecord
from harness.senders.load_runner import Fanout
from harness.webpage import locust_tab
from harness.webpage.locust_tab import LatencyTable, SloTable
from harness.webpage.metrics_port import MetricsPort

MS = 1_000_000


def record(
    number: int, ttft_ms: int, gaps: int = 2, outcome: Outcome = Outcome.ok
) -> RequestRecord:
    """A request whose first token came after `ttft_ms`, then `gaps` more every 10 ms."""
    at = [(ttft_ms + 10 * i) * MS for i in range(gaps + 1)] if outcome is Outcome.ok else []
    return RequestRecord(
        0, number, 0, 0, at[-1] if at else ttft_ms * MS, outcome,
        planned_tokens=gaps + 1, answer_index=0,
        at_ns=array("q", at), not_before_ns=array("q", at), tokens=array("q", [1] * len(at)),
    )  # fmt: skip


def test_the_table_states_exact_percentiles() -> None:
    """TTFTs 1 .. 200 ms: p50 is the one of rank ceil(0.5 x 199) = 100, 101 ms; p95 of rank 190."""
    table = LatencyTable()
    RunCounts(tap=table.take).put([record(n, n + 1) for n in range(200)])
    rows = {row["key"]: row for row in table.rows()}
    assert rows["ttft"] == {
        "metric": "Time to first token", "key": "ttft", "n": 200, "p50": "101.00",
        "p90": "181.00", "p95": "191.00", "p99": "199.00", "p999": "200.00", "max": "200.00",
    }  # fmt: skip
    assert (rows["itl"]["n"], rows["itl"]["p50"]) == (400, "10.00")


def test_the_table_says_which_rows_are_of_the_newest_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With room for 300: all 200 TTFTs are kept, and of 400 gaps the newest 300."""
    monkeypatch.setattr(locust_tab, "RECENT", 300)
    table = LatencyTable()
    RunCounts(tap=table.take).put([record(n, n + 1) for n in range(200)])
    got = {row["key"]: (row["metric"], row["n"]) for row in table.rows()}
    assert got["ttft"] == ("Time to first token", 200)
    assert got["itl"] == ("Inter-token latency (newest 300)", 300)


def test_the_metrics_port_leaves_the_process_as_it_was() -> None:
    """Python's switch interval is short only while a port is served."""
    before = sys.getswitchinterval()
    port = MetricsPort("127.0.0.1", 0)
    port.start()
    assert sys.getswitchinterval() < before
    port.close()
    port.close()
    assert sys.getswitchinterval() == before


def test_failures_are_infinite_and_parts_are_left_out() -> None:
    """30 of 100 failed: p50 is finite, p90 is inf; a part of an open request changes nothing."""
    table = LatencyTable()
    counts = RunCounts(tap=table.take)
    counts.put([record(n, 100) for n in range(70)])
    counts.put([record(n, 5, outcome=Outcome.timeout) for n in range(70, 100)])
    counts.put([record(100, 1, outcome=Outcome.open)])
    row = table.rows()[0]
    assert (row["n"], row["p50"], row["p90"], row["max"]) == (100, "100.00", "inf", "inf")
    table.clear()
    assert table.rows()[0]["n"] == 0


@pytest.mark.parametrize("pieces", [[3], [8], [20], [5, 5, 5], [1] * 11, [8, 0, 9], [5] * 9])
def test_the_table_keeps_the_most_recent_values(
    pieces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the sizes of the pieces, the last eight values are there."""
    monkeypatch.setattr(locust_tab, "RECENT", 8)
    table, n = LatencyTable(), 0
    for size in pieces:
        table.take("ttft", np.arange(-n, -n - size, -1) * MS)  # from 0 ms down
        n += size
    row = table.rows()[0]
    assert (row["n"], row["max"]) == (min(n, 8), f"{-max(n - 8, 0):.2f}")
    assert row["metric"] == "Time to first token" + " (newest 8)" * (n > 8)


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
    counts = RunCounts([Slo.parse("ttft_p95=500ms")])
    table = SloTable(lambda: counts)
    counts.put([record(i, 600 if i < slow else 400) for i in range(n)])
    told = {"slo": "ttft_p95=500ms", "so_far": so_far, "over": over, "allowed": "5.00%"}
    assert table.rows() == [told | {"n": str(n)}]
    table.clear()
    counts.put([record(n, 600)])
    assert [(row["over"], row["n"]) for row in table.rows()] == [("100.00%", "1")]


def test_a_broken_sink_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """The sink behind it still gets every record; the failure is said once."""

    class Broken:
        def put(self, _: list[RequestRecord]) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            raise OSError(28, "No space left on device")

    counts = RunCounts()
    sinks = Fanout([Broken(), counts])
    for number in range(3):
        sinks.put([record(number, 10)])
    sinks.close()
    assert counts.outcomes[Outcome.ok] == 3
    assert sinks.failures == {"Broken": "OSError: [Errno 28] No space left on device"}
    assert len(caplog.records) == 1
