"""The decoder goes through a batch by streams; row by row it would say the same."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from wire_examples import delta, event

from harness.reader.decoder_process import Decoding
from harness.reader.raw_batch import ENDED, EXACT, HEAD, LENGTH, OPENED, ROW, TOKEN, Batch, Message
from harness.records.codec import decode
from harness.records.folder_writer import CUT_SHORT
from harness.records.redact import HIDDEN
from harness.records.request_record import Outcome
from harness.wire.decode import SentRequest, StreamDecoder

if TYPE_CHECKING:
    from harness.records.request_record import RequestRecord

STREAMS = 6


def asked(stream: int) -> SentRequest:
    """What the reader tells of it."""
    return SentRequest(0, stream, 3, 4, -1, 0, 1_000)


class Both:
    """A batch for the decoder, and each row at once to a stream's own."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.batch = Batch()
        self.now = 2_000
        self.each = [StreamDecoder(asked(stream)) for stream in range(STREAMS)]
        self.counts = [0 if stream % 2 else -1 for stream in range(STREAMS)]
        for stream, decoder in enumerate(self.each):
            self.batch.notice(stream, OPENED, tuple(asked(stream)))
            self.batch.notice(stream, HEAD, 200, 1_500, "text/event-stream")
            decoder.head(200, 1_500, "text/event-stream")

    def event(self) -> None:
        """A token as bytes or known by its likeness; now and then a count jumps."""
        rng = self.rng
        stream = self.rng.randrange(STREAMS)
        exact = rng.random() < 0.7
        if self.counts[stream] >= 0:
            self.counts[stream] += rng.choice((1, 1, 1, 1, 1, 2, 0))
        bound = self.now - rng.choice((0, 400))
        if rng.random() < 0.2:
            self.token_as_bytes(stream, bound, exact)
        else:
            self.token_as_row(stream, bound, exact)
        self.now += 100

    def token_as_bytes(self, stream: int, bound: int, exact: bool) -> None:
        """An event as it was read."""
        count = self.counts[stream]
        body = event(delta(usage=count if count >= 0 else None, content="x"))
        self.batch.read(stream, self.now, bound, exact, body)
        self.each[stream].feed(body, self.now, bound, exact)

    def token_as_row(self, stream: int, bound: int, exact: bool) -> None:
        """As C makes it of an event like the one before, and what `tokens` does for one row."""
        count = self.counts[stream]
        kind = TOKEN + EXACT if exact else TOKEN
        self.batch.rows += ROW.pack(stream, self.now, bound, kind, count)
        at = memoryview(self.now.to_bytes(8, "little"))
        low = memoryview(bound.to_bytes(8, "little"))
        self.each[stream].tokens(at, at if exact else low, [count], False, -1)

    def message(self) -> Message:
        """What there is so far."""
        data = self.batch.message(1, self.now)
        self.batch = Batch()
        return Message.read(data[LENGTH.size :])


def test_nothing() -> None:
    """A message may only ask for parts."""
    data = Batch().message(3, 5, known_ns=4)
    message = Message.read(data[LENGTH.size :])
    assert message[:3] == (3, 5, 4)
    assert Decoding().take(message) == ([], [])


@pytest.mark.parametrize("seed", range(20))
def test_by_streams_or_by_rows(seed: int) -> None:
    """Several batches of tokens, bytes and notices; the records agree in every field."""
    both = Both(random.Random(seed))  # noqa: S311 - a test's dice
    decoding = Decoding()
    got: dict[int, RequestRecord] = {}
    for _ in range(5):
        for _ in range(60):
            both.event()
        assert decoding.take(both.message()) == ([], [])
    for stream in range(STREAMS):
        before = decoding.exact_events
        both.batch.notice(stream, ENDED, "cancelled", "enough", both.now)
        (frame,), _ = decoding.take(both.message())
        (got[stream],) = decode(frame).records
        assert decoding.exact_events - before == both.each[stream].exact_events
    for stream, decoder in enumerate(both.each):
        want = replace(decoder.end(None, "", both.now), outcome=got[stream].outcome, error="enough")
        assert got[stream] == want
    events = sum(len(record.at_ns) for record in got.values())
    assert decoding.ended == STREAMS
    assert decoding.events == events
    assert decoding.streams == {}


def test_what_is_open_when_the_reader_is_gone() -> None:
    """Parts come when asked for; at the end of the pipe each stream is cut short, tokens kept."""
    both = Both(random.Random(1))  # noqa: S311 - as above
    decoding = Decoding()
    for _ in range(40):
        both.event()
    data = both.batch.message(1, both.now, known_ns=both.now)
    whole, parts = decoding.take(Message.read(data[LENGTH.size :]))
    assert whole == []
    assert len(parts) == STREAMS
    cut = decode(b"".join(decoding.cut_short())).records
    for record, part in zip(cut, decode(b"".join(parts)).records, strict=True):
        assert record.outcome == Outcome.cancelled
        assert record.error == CUT_SHORT
        assert part.outcome == Outcome.open
        assert part.done_ns == record.done_ns
        assert record.at_ns == part.at_ns
    assert sum(len(record.at_ns) for record in cut) == decoding.events > 0


def test_a_secret_in_an_error_is_hidden() -> None:
    """Before the record is encoded: no file and no stream has it."""
    batch = Batch()
    decoding = Decoding(["q7-very-private"])
    batch.notice(0, OPENED, tuple(asked(0)))
    batch.notice(0, ENDED, "connect", "no route for q7-very-private", 3_000)
    (frame,), _ = decoding.take(Message.read(batch.message(1, 4_000)[LENGTH.size :]))
    assert decode(frame).records[0].error == f"no route for {HIDDEN}"
