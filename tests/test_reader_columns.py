"""The decoder goes through a batch by streams; row by row it would say the same."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from wire_examples import delta, event

from harness.drive.batch import ENDED, EXACT, HEAD, LENGTH, OPENED, ROW, TOKEN, Batch, Message
from harness.drive.decoder import Decoding
from harness.runfolder.codec import decode
from harness.wire.decode import Asked, StreamDecoder

if TYPE_CHECKING:
    from harness.measure.records import RequestRecord

STREAMS = 6


def asked(stream: int) -> Asked:
    """What the reader tells of it."""
    return Asked(0, stream, 3, 4, -1, 0, 1_000)


class Both:
    """A batch for the decoder, and each row at once to a stream's own."""

    def __init__(self, rng: random.Random) -> None:
        """All streams open; half of them say running counts."""
        self.rng, self.batch, self.now = rng, Batch(), 2_000
        self.each = [StreamDecoder(asked(stream)) for stream in range(STREAMS)]
        self.counts = [0 if stream % 2 else -1 for stream in range(STREAMS)]
        for stream, decoder in enumerate(self.each):
            self.batch.notice(stream, OPENED, tuple(asked(stream)))
            self.batch.notice(stream, HEAD, 200, 1_500, "text/event-stream")
            decoder.head(200, 1_500, "text/event-stream")

    def event(self) -> None:
        """A token as bytes or known by its likeness; now and then a count jumps."""
        rng, stream = self.rng, self.rng.randrange(STREAMS)
        decoder, exact = self.each[stream], rng.random() < 0.7
        if self.counts[stream] >= 0:
            self.counts[stream] += rng.choice((1, 1, 1, 1, 1, 2, 0))
        count, bound = self.counts[stream], self.now - rng.choice((0, 400))
        if rng.random() < 0.2:
            body = event(delta(usage=count if count >= 0 else None, content="x"))
            self.batch.read(stream, self.now, bound, exact, body)
            decoder.feed(body, self.now, bound, exact)
        else:
            self.batch.rows += ROW.pack(stream, self.now, bound, TOKEN + EXACT * exact, count)
            # what `tokens` does for one row that is not even
            times = (memoryview(t.to_bytes(8, "little")) for t in (self.now, bound))
            at, low = times
            decoder.tokens(at, at if exact else low, [count], False, -1)
        self.now += 100

    def message(self) -> Message:
        """What there is so far."""
        data = self.batch.message(1, self.now, parts=False)
        self.batch = Batch()
        return Message.read(data[LENGTH.size :])


def test_nothing() -> None:
    """A message may only ask for parts, or tell a new decoder that there is no state."""
    data = Batch().message(3, 5, parts=True)
    answers = list(Decoding().take(Message.read(data[LENGTH.size :])))
    assert [answer[:3] for answer in answers] == [("done", 3, True)]


@pytest.mark.parametrize("seed", range(20))
def test_by_streams_or_by_rows(seed: int) -> None:
    """Several batches of tokens, bytes and notices; the records agree in every field."""
    both, decoding = Both(random.Random(seed)), Decoding()  # noqa: S311 - a test's dice
    got: dict[int, RequestRecord] = {}
    exact: dict[int, int] = {}
    answers: list[tuple[Any, ...]] = []
    for _ in range(5):
        for _ in range(60):
            both.event()
        answers += decoding.take(both.message())
    for stream in range(STREAMS):
        both.batch.notice(stream, ENDED, "cancelled", "enough", both.now)
    answers += decoding.take(both.message())
    for kind, *values in answers:
        for (*_, frame), _, n, _ in values[0] if kind == "ended" else ():
            (record,) = decode(frame).records
            got[record.number], exact[record.number] = record, n
    for stream, decoder in enumerate(both.each):
        want = replace(decoder.end(None, "", both.now), outcome=got[stream].outcome, error="enough")
        assert (got[stream], exact[stream]) == (want, decoder.exact_events)
