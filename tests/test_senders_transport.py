"""Records from workers to the master: once, in order, and what is missing is counted."""

from array import array
from collections.abc import Callable

import pytest

from harness.reader.transport import (
    RESEND_S,
    Ack,
    Beat,
    ClockBounds,
    Inbox,
    Outbox,
    RecordBatch,
    say_missing,
)
from harness.records.codec import encode
from harness.records.request_record import Outcome, RequestRecord


def record(worker: int, number: int, outcome: Outcome = Outcome.ok) -> bytes:
    """A request of one token, as its frame."""
    one = array("q", [30])
    arrays = {"at_ns": one, "not_before_ns": one, "tokens": array("q", [1])}
    return encode(RequestRecord(worker, number, 1, 10, 40, outcome, **arrays))


class Wire:
    """Both ends of one worker; its k-th message is lost when `lose(k)`."""

    def __init__(self, lose: Callable[[int], bool] = lambda _: False, worker: int = 0) -> None:
        self.got: list[tuple[int, int]] = []
        self.lose = lose
        self.sent = 0
        self.now_s = 0.0
        self.inbox = Inbox(lambda records: self.got.extend(r.key for r in records))
        self.outbox = Outbox(self.send, stream="a", worker=worker)

    def send(self, batch: RecordBatch) -> None:
        """The decoder's message, and at once the master's answer."""
        self.sent += 1
        if not self.lose(self.sent - 1):
            self.outbox.acknowledged(self.inbox.take(batch), self.now_s)

    def pass_on(self, frames: list[bytes], now_s: float = 0.0, known_ns: int = 0) -> None:
        """Records into the decoder's end, and a tick."""
        self.now_s = now_s
        self.outbox.put(frames, known_ns)
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
    assert wire.outbox.bytes == 0
    assert wire.inbox.missing() == {}


def test_a_lost_acknowledgement_does_not_deliver_twice() -> None:
    """The master has the batch, the worker does not know: it sends again and nothing is doubled."""
    wire = Wire()
    outbox = Outbox(lambda batch: wire.inbox.take(batch) and None, stream="a", worker=0)
    outbox.put([record(0, 0)])
    outbox.tick(0.0)
    outbox.tick(RESEND_S + 0.1)
    assert wire.got == [(0, 0)]
    assert wire.inbox.ended == 1
    assert outbox.bytes > 0
    outbox.acknowledged(1, 3.0)
    assert outbox.bytes == 0


def test_what_is_known_comes_with_the_last_batch_of_a_tick() -> None:
    """1,200 records at second 7 make three batches: the first two know no more than before."""
    wire = Wire(lose=lambda k: k == 3)
    wire.pass_on([record(0, 0)], 3.0, known_ns=3)
    many = [record(0, number) for number in range(1, 1201)]
    wire.pass_on(many, 7.0, known_ns=7)
    assert len(wire.got) == 1001
    assert wire.inbox.known_ns == {0: 3}
    wire.pass_on([], 7.0 + RESEND_S + 0.1)
    assert len(wire.got) == 1201
    assert wire.inbox.known_ns == {0: 7}


def test_parts_are_delivered_and_are_no_end() -> None:
    """Parts pass in order before their whole record, and a part that got lost comes again."""
    wire = Wire(lose=lambda k: k == 1)
    part = record(0, 7, Outcome.open)
    whole = record(0, 7)
    for frames, ended in (([part], 0), ([part], 0), ([whole], 0), ([], 1)):
        wire.pass_on(frames, wire.now_s + RESEND_S * 0.7)
        assert wire.inbox.ended == ended
    assert wire.got == [(0, 7)] * 3


def test_what_a_dead_worker_did_not_send_is_counted() -> None:
    """Worker 1 began 100 requests, three records came: 97 are missing, and a sentence says so."""
    wire = Wire(worker=1)
    wire.pass_on([record(1, number) for number in (0, 1, 5)])
    for issued in (100, 40):  # an older beat may come late
        beat = Beat(run="", worker=1, issued=issued, figures={"n": issued}, trouble="")
        wire.inbox.beat(beat)
    of_another_run = Beat(run="another", worker=1, issued=7_000, figures={}, trouble="gone")
    wire.inbox.beat(of_another_run)
    assert wire.inbox.figures == {1: {"n": 40}}
    assert wire.inbox.trouble == ""
    assert wire.inbox.missing() == {1: 97}
    said = say_missing(wire.inbox.missing())
    assert said.startswith("The records of 97 requests never arrived (97 of worker 1)")
    assert "Either a load process died, as reported above, or one was too busy" in said
    assert say_missing({}) == ""


def test_a_workers_next_decoder_counts_its_batches_anew() -> None:
    """The request numbers go on; what is known without any record is a batch too."""
    wire = Wire()
    wire.pass_on([record(0, 0)], known_ns=3)
    wire.outbox = Outbox(wire.send, stream="b", worker=0)
    wire.pass_on([], known_ns=5)
    wire.pass_on([record(0, 1)])
    assert wire.got == [(0, 0), (0, 1)]
    assert wire.inbox.known_ns == {0: 5}


def test_what_the_master_does_not_take_is_counted_in_bytes() -> None:
    """Three messages of one record, the second lost: two records wait until it is sent again."""
    wire = Wire(lose=lambda k: k == 1)
    size = len(record(0, 0))
    for number in range(3):
        wire.pass_on([record(0, number)])
    assert wire.outbox.bytes == 2 * size
    wire.pass_on([], RESEND_S + 0.1)
    assert wire.outbox.bytes == 0


@pytest.mark.parametrize(
    ("asked", "ahead", "apart"),
    [
        ([], 0, 0),
        # there in 1, back in 1: between 200 - 1 and 200 + 1
        ([(0, 201, 2)], 200, 201),
        # a slow way back and a slow way there bound it from either side: 199 .. 201
        ([(0, 201, 90), (100, 399, 200)], 200, 201),
        # on the same machine 0 may be true, so nothing is set: -3 .. 1
        ([(0, 1, 4)], 0, 3),
        # it drifted between: at least 210, then at most 202
        ([(0, 212, 2), (100, 302, 102)], 206, 210),
    ],
)
def test_the_masters_clock(asked: list[tuple[int, int, int]], ahead: int, apart: int) -> None:
    """From (left, the master's clock, answered): how far it is ahead, and at most apart."""
    bounds = ClockBounds()
    for sent_ns, at_ns, now_ns in asked:
        bounds.take(Ack(taken=0, sent_ns=sent_ns, at_ns=at_ns), now_ns)
    assert bounds.ahead_ns == ahead
    assert bounds.apart_ns == apart


def test_only_what_no_decoder_keeps_is_stored() -> None:
    """By worker; all is delivered."""
    wire = Wire()
    stored = dict[int, int]()
    wire.inbox.store = lambda worker, records: stored.update({worker: len(records)})
    for worker, kept in ((0, True), (3, False)):
        wire.outbox = Outbox(wire.send, stream=str(worker), worker=worker, kept=kept)
        wire.pass_on([record(worker, 0)])
    assert wire.got == [(0, 0), (3, 0)]
    assert stored == {3: 1}
