"""Sinks: one broken sink harms no other, and the metrics port leaves the process as it was."""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING

from harness.metrics.run_counts import RunCounts
from harness.records.request_record import Outcome, RequestRecord
from harness.senders.load_runner import Fanout
from harness.webpage.metrics_port import MetricsPort

if TYPE_CHECKING:
    import pytest


def record(number: int) -> RequestRecord:
    """A request that had its one token after 10 ms."""
    at = array("q", [10_000_000])
    return RequestRecord(
        0,
        number,
        0,
        0,
        at[0],
        Outcome.ok,
        planned_tokens=1,
        answer_index=0,
        at_ns=at,
        not_before_ns=at,
        tokens=array("q", [1]),
    )


def test_the_metrics_port_leaves_the_process_as_it_was() -> None:
    """Python's switch interval is short only while a port is served."""
    before = sys.getswitchinterval()
    port = MetricsPort("127.0.0.1", 0)
    port.start()
    assert sys.getswitchinterval() < before
    port.close()
    port.close()
    assert sys.getswitchinterval() == before


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
        sinks.put([record(number)])
    sinks.close()
    assert counts.outcomes[Outcome.ok] == 3
    assert sinks.failures == {"Broken": "OSError: [Errno 28] No space left on device"}
    assert len(caplog.records) == 1
