"""Small tables for the tests of `measure`: one line per request, times in ms."""

from harness.measure.records import Outcome, RequestRecord, ns_array
from harness.measure.table import RecordTable

MS = 1_000_000


def record(
    number: int,
    sent: float,
    events: list[float],
    done: float | None = None,
    outcome: Outcome = Outcome.ok,
    planned: int = 0,
    lows: list[float] | None = None,
    tokens: list[int] | None = None,
    worker: int = 0,
) -> RequestRecord:
    """A request sent at `sent` whose token-bearing events arrive at `events` (ms)."""
    at = [round(e * MS) for e in events]
    return RequestRecord(
        worker=worker,
        number=number,
        user=number,
        sent_ns=round(sent * MS),
        done_ns=round((done if done is not None else max([sent, *events])) * MS),
        outcome=outcome,
        planned_tokens=planned or len(events),
        answer_index=0 if events else -1,
        at_ns=ns_array(at),
        not_before_ns=ns_array([round(x * MS) for x in lows] if lows else at),
        tokens=ns_array(tokens or [1] * len(events)),
    )


def table(*records: RequestRecord) -> RecordTable:
    """Columns of these records."""
    return RecordTable.from_records(records)
