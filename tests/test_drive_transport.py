"""Records from workers to the master: once, in order, and what is missing is counted."""

from array import array
from collections.abc import Callable

import pytest

from harness.drive.transport import RESEND_S, Batch, Inbox, Outbox, say_missing
from harness.measure.records import Outcome, RequestRecord
from harness.runfolder.codec import Sealed, encode


def record(worker: int, number: int, outcome: Outcome = Outcome.ok) -> Sealed:
    """A request of one token."""
    one = array("q", [30])
    arrays = {"at_ns": one, "not_before_ns": one, "tokens": array("q", [1])}
    made = RequestRecord(worker, number, 1, 10, 40, outcome, **arrays)
    return Sealed(worker, number, outcome, 40, "", encode(made))


class Wire:
    """Both ends of one worker; its k-th message is lost when `lose(k)`."""

    def __init__(self, lose: Callable[[int], bool] = lambda _: False, worker: int = 0) -> None:
        """Connect them."""
        self.got: list[tuple[int, int]] = []
        self.lose = lose
        self.sent = 0
        self.now_s = 0.0
        self.inbox = Inbox(lambda records: self.got.extend(r.key for r in records))
        self.outbox = Outbox(worker, self.send, lambda: 100, known_ns=lambda: round(self.now_s))

    def send(self, batch: Batch) -> None:
        """The worker's message, and at once the master's answer."""
        self.sent += 1
        if not self.lose(self.sent - 1):
            self.outbox.acknowledged(self.inbox.take(batch), self.now_s)

    def pass_on(self, records: list[Sealed], now_s: float = 0.0) -> None:
        """Records into the worker's end, and a tick."""
        self.now_s = now_s
        self.outbox.put(records)
        self.outbox.tick(now_s)


@pytest.mark.parametrize(
    ("name", "lose"),
    [
        ("nothing", lambda _: False),
        ("the first", lambda k: k == 0),
        ("every third", lambda k: k % 3 == 0),
        ("the first ten", lambda k: k < 10),
    ],
)
def test_every_record_arrives_once_in_order(name: str, lose: Callable[[int], bool]) -> None:
    """Whatever is lost on the way, the master delivers each record once, in order."""
    wire = Wire(lose)
    for number in range(100):
        wire.pass_on([record(0, number)], number * 0.25)
    for again in range(120):
        wire.pass_on([], 25 + again * (RESEND_S + 0.1))
    assert wire.got == [(0, number) for number in range(100)], name
    assert wire.outbox.empty
    assert wire.inbox.missing() == {}


def test_a_lost_acknowledgement_does_not_deliver_twice() -> None:
    """The master has the batch, the worker does not know: it sends again and nothing is doubled."""
    wire = Wire()
    outbox = Outbox(0, lambda batch: wire.inbox.take(batch) and None, lambda: 1)
    outbox.put([record(0, 0)])
    outbox.tick(0.0)
    outbox.tick(RESEND_S + 0.1)
    assert (wire.got, wire.inbox.duplicates, outbox.empty) == ([(0, 0)], 0, False)
    outbox.acknowledged(1, 3.0)
    assert outbox.empty


def test_what_is_known_comes_with_the_last_batch_of_a_tick() -> None:
    """1,200 records at second 7 make three batches: the first two know no more than before."""
    wire = Wire(lose=lambda k: k == 3)
    wire.pass_on([record(0, 0)], 3.0)
    wire.pass_on([record(0, number) for number in range(1, 1201)], 7.0)
    assert (len(wire.got), wire.inbox.known_ns) == (1001, {0: 3})
    wire.pass_on([], 7.0 + RESEND_S + 0.1)
    assert (len(wire.got), wire.inbox.known_ns) == (1201, {0: 7})


def test_parts_are_delivered_until_their_request_ends() -> None:
    """Parts pass in order, the whole record once, and a part that comes after it is dropped."""
    wire = Wire()
    part, whole = record(0, 7, Outcome.open), record(0, 7)
    for records in ([part], [part], [whole], [part], [whole]):
        wire.pass_on(records)
    assert wire.got == [(0, 7), (0, 7), (0, 7)]
    assert wire.inbox.duplicates == 1


def test_what_a_dead_worker_did_not_send_is_counted() -> None:
    """Worker 1 began 100 requests, three records came: 97 are missing, and a sentence says so."""
    wire = Wire(worker=1)
    wire.pass_on([record(1, number) for number in (0, 1, 5)])
    assert wire.inbox.missing() == {1: 97}
    assert say_missing(wire.inbox.missing()).startswith(
        "97 requests were begun whose records never arrived (97 of worker 1)"
    )
    assert say_missing({}) == ""
