"""A client that stood still sends its backlog at once: how late its requests were sent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from measure_tables import MS, record, table

from harness.diagnosis.send_delay import late_sends, send_delay_sentence, send_delays
from harness.metrics.slo import Slo
from harness.records.request_record import Outcome
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.records.record_table import RecordTable

END_NS = 60 * SECOND


def stalled(from_s: float, to_s: float, rate_per_s: int = 10, seconds: int = 60) -> RecordTable:
    """A schedule of a minute; what is due while the client stands still is sent afterwards."""
    rows = []
    for number in range(rate_per_s * seconds):
        due_ms = 1000 * number / rate_per_s
        sent_ms = 1000 * to_s if from_s <= due_ms / 1000 < to_s else due_ms
        request = record(number, sent_ms, [sent_ms + 50])
        rows.append(replace(request, scheduled_ns=round(due_ms * MS)))
    return table(*rows)


# Late is more than half the limit; half as many may be late as may be over the limit.
@pytest.mark.parametrize(
    ("stall_s", "slos", "n_late"),
    [
        (0.0, ["ttft_p95=500ms"], 0),
        (1.0, ["ttft_p95=500ms"], 0),  # 7 of 600 by more than 250 ms: 1.2%
        (2.0, ["ttft_p95=500ms"], 18),  # 3%
        (4.9, ["ttft_p95=500ms"], 47),
        (0.05, ["ttft_p95=1ms"], 0),  # a backlog of 50 ms at most is none
        (4.9, ["ttft_p50=500ms"], 0),  # half may be over, a quarter late
        (4.9, ["e2e_p95=10s"], 0),  # none by more than 5 s
        (4.9, ["e2e_p95=10s", "ttft_p95=500ms"], 47),  # the strictest counts
        (4.9, ["itl_p95=50ms"], 47),  # no limit on whole requests: as one of 500 ms
        (4.9, [], 47),
    ],
)
def test_a_backlog_is_the_clients_own(stall_s: float, slos: list[str], n_late: int) -> None:
    """The sentence names how many, how late, and what was expected."""
    rows = stalled(10, 10 + stall_s)
    said = send_delay_sentence(rows, 0, END_NS, [Slo.parse(slo) for slo in slos])
    start = f"{n_late} of 600 requests were sent more than 250 ms later than they were due "
    if n_late:
        assert said.startswith(start)
    else:
        assert said == ""


def test_the_sentence() -> None:
    """4.9 s at 10/s: 49 late ones are 8%, so that the p95 is one of them."""
    said = send_delay_sentence(stalled(10, 14.9), 0, END_NS, [Slo.parse("ttft_p95=500ms")])
    assert "(p95 2,000 ms, at most 4,900 ms): expected at most 2.5%" in said


def test_a_client_that_falls_behind_little_by_little() -> None:
    """It sends 10 requests in 1.1 s: after 2.5 s of the schedule each one is 250 ms late."""
    rows = []
    for number in range(600):
        due_ms = 100 * number
        sent_ms = 1.1 * due_ms
        request = record(number, sent_ms, [sent_ms + 190])
        rows.append(replace(request, scheduled_ns=due_ms * MS))
    said = send_delay_sentence(table(*rows), 0, END_NS, [Slo.parse("ttft_p95=500ms")])
    assert said.startswith(
        "574 of 600 requests were sent more than 250 ms later than they were due"
    )


@pytest.mark.parametrize(
    ("window_s", "n"),
    [
        ((0, 10), 101),  # due until 10.0 s, of which the last was sent at 15 s
        ((10, 15), 51),  # those of the stall, and the one at 15 s
        ((15, 20), 101),  # sent then, though due before: the backlog is in both
    ],
)
def test_a_backlog_is_in_the_window_of_its_dues_and_of_its_sends(
    window_s: tuple[int, int], n: int
) -> None:
    """It loads the server after the stall."""
    start, end = (second * SECOND for second in window_s)
    assert len(send_delays(stalled(10, 15), start, end)) == n


def test_users_of_a_closed_loop_are_ready_when_their_answer_has_ended() -> None:
    """300 ms late after an answer; a planned pause and a failure are no delay of the client."""
    spans = ((0, 100), (400, 500), (1500, 1600), (3000, 3100))
    rows = [replace(record(n, at, [end]), user=7) for n, (at, end) in enumerate(spans)]
    rows[1] = replace(rows[1], think_ns=1000 * MS)
    rows[2] = replace(rows[2], outcome=Outcome.status)
    assert send_delays(table(*rows), 0, END_NS).tolist() == [300 * MS, 0]


def test_what_could_not_be_sent_is_not_late() -> None:
    """Refused connections and dropped requests are counted as failures, not as delays."""
    refused = record(0, 5000, [], 5000, Outcome.connect)
    dropped = record(1, 5000, [], 5000, Outcome.dropped)
    rows = [replace(request, scheduled_ns=0) for request in (refused, dropped)]
    assert late_sends(table(*rows), 0, END_NS, []) is None


def test_a_few_requests_have_no_share() -> None:
    """One late request of three is no finding."""
    assert send_delay_sentence(stalled(0, 0.9, rate_per_s=1, seconds=3), 0, END_NS, []) == ""
