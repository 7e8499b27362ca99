"""Sinks: the live tables state exact figures, and one broken sink harms no other."""

from __future__ import annotations

import sys
from array import array

import numpy as np
import pytest

from harness.drive.load_runner import Fanout
from harness.measure.records.request_record import Outcome, RequestRecord
from harness.measure.slo import Slo
from harness.webpage.locust_tab import LatencyTable, Ring, SloTable
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
    table.put([record(n, n + 1) for n in range(200)])
    rows = {row["key"]: row for row in table.rows()}
    assert rows["ttft"] == {
        "metric": "Time to first token", "key": "ttft", "n": 200, "p50": "101.00",
        "p90": "181.00", "p95": "191.00", "p99": "199.00", "p999": "200.00", "max": "200.00",
    }  # fmt: skip
    assert (rows["itl"]["n"], rows["itl"]["p50"]) == (400, "10.00")


def test_the_table_says_which_rows_are_of_the_newest_values() -> None:
    """With room for 300: all 200 TTFTs are kept, and of 400 gaps the newest 300."""
    table = LatencyTable(300)
    table.put([record(n, n + 1) for n in range(200)])
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
    table.put([record(n, 100) for n in range(70)])
    table.put([record(n, 5, outcome=Outcome.timeout) for n in range(70, 100)])
    table.put([record(100, 1, outcome=Outcome.open)])
    row = table.rows()[0]
    assert (row["n"], row["p50"], row["p90"], row["max"]) == (100, "100.00", "inf", "inf")
    assert (table.requests, table.failed) == (100, 30)
    table.clear()
    assert table.rows()[0]["n"] == 0


@pytest.mark.parametrize("pieces", [[3], [8], [20], [5, 5, 5], [1] * 11, [8, 0, 9]])
def test_a_ring_keeps_the_most_recent_values(pieces: list[int]) -> None:
    """Whatever the sizes of the pieces, the last eight values are there."""
    ring, values = Ring(8), []
    for size in pieces:
        piece = [len(values) + i for i in range(size)]
        values += piece
        ring.extend(np.array(piece, float))
    assert ring.ordered().tolist() == values[-8:]
    assert ring.total == len(values)


@pytest.mark.parametrize(
    ("slow", "so_far", "over"),
    [(5, "within so far", "2.50%"), (11, "over so far", "5.50%"), (10, "within so far", "5.00%")],
)
def test_slos_are_told_by_the_exact_share(slow: int, so_far: str, over: str) -> None:
    """Of 200 requests so many took 600 ms: 5 % over 500 ms is still a p95 of 500 ms."""
    table = SloTable([Slo.parse("ttft_p95=500ms")])
    table.put([record(n, 600 if n < slow else 400) for n in range(200)])
    assert table.rows() == [
        {
            "slo": "ttft_p95=500ms",
            "so_far": so_far,
            "over": over,
            "allowed": "5.00%",
            "n": "200",
        }
    ]


@pytest.mark.parametrize(("age_ms", "want"), [(400, (200, 0)), (600, (210, 10))])
def test_requests_that_the_harness_cut_off(age_ms: int, want: tuple[int, int]) -> None:
    """They are over a limit once their age is, else unknown; they are no failures."""
    slos, table = SloTable([Slo.parse("ttft_p95=500ms")]), LatencyTable()
    for sink in (slos, table):
        sink.put([record(n, 400) for n in range(200)])
        sink.put([record(n, age_ms, outcome=Outcome.cancelled) for n in range(200, 210)])
    assert (slos.n[0], slos.over[0]) == want
    assert (table.requests, table.failed, table.rows()[0]["max"]) == (210, 0, "400.00")


def test_too_few_requests_decide_nothing() -> None:
    """A p95 needs 200 requests."""
    table = SloTable([Slo.parse("ttft_p95=500ms")])
    table.put([record(n, 600) for n in range(199)])
    assert table.rows()[0]["so_far"] == "too few requests"


def test_a_broken_sink_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """The sink behind it still gets every record; the failure is said once."""

    class Broken:
        def put(self, _: list[RequestRecord]) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            raise OSError(28, "No space left on device")

    table = LatencyTable()
    sinks = Fanout([Broken(), table])
    for number in range(3):
        sinks.put([record(number, 10)])
    sinks.close()
    assert table.requests == 3
    assert sinks.failures == {"Broken": "OSError: [Errno 28] No space left on device"}
    assert len(caplog.records) == 1
