"""A server's worst: each answer leaves one record, with an outcome and a sentence.

The answers are cut at random places, and good ones are asked for among them: nothing that one
connection does may harm another.
"""

from __future__ import annotations

import gzip
import json
import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import gevent
import psutil
import pytest
from gevent.monkey import get_original
from gevent.pool import Pool
from reader_cases import LAST, WHOLE, Step, case, send, wire_server
from wire_examples import EVENTS, HEAD, STREAM, chunk, delta, event

from harness.reader import reader as reader_module
from harness.reader.client_connection import Connection
from harness.records.request_record import Outcome
from harness.units import MS, SECOND
from harness.wire.http import MAX_HEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.records.request_record import RequestRecord

blocking_sleep: Final = get_original("time", "sleep")  # whatever other tests have patched
SEEDS: Final = range(4)
MUTANTS: Final = 300
AT_ONCE: Final = 16
TOKEN = chunk(EVENTS[1])
END = chunk(EVENTS[-1]) + LAST
CLOSED = "the server closed the connection"
Answer = tuple[bytes, str, str]  # bytes, outcome, sentence


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server that does as it is told."""
    with wire_server() as port:
        yield port


def head(*lines: str, status: int = 200) -> bytes:
    """A head that has these lines, too."""
    more = "".join(f"{line}\r\n" for line in lines).encode("latin-1")
    answered = HEAD.replace(b"200 OK", b"%d -" % status)
    return answered.replace(b"\r\n\r\n", b"\r\n" + more + b"\r\n")


def plain(status: int, body: bytes, *lines: str) -> bytes:
    """A whole answer with a length."""
    head_lines = [
        f"HTTP/1.1 {status} -",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *lines,
    ]
    return "\r\n".join(head_lines).encode() + b"\r\n\r\n" + body


def error(message: str) -> bytes:
    """The body of a failure."""
    return json.dumps({"error": {"message": message}}).encode()


def second(index: int) -> dict[str, Any]:
    """A token of another choice."""
    return {"choices": [{"index": index, "delta": {"content": "b"}, "finish_reason": None}]}


BOTH = {"choices": [*delta(content="a")["choices"], *second(1)["choices"]]}
ZIPPED = gzip.compress(b"".join(EVENTS))
LONG_HEAD = "the answer's head is longer than 256 KiB"
ENCODED = "the answer is encoded (gzip), which was not asked for"
CHOICES = "an event has a second choice, and one was asked for"
NO_COMPLETION = "an event is JSON, but not that of a completion"
HOSTILE: Final[dict[str, Answer]] = {
    "gzip": (head("Content-Encoding: gzip") + chunk(ZIPPED) + LAST, "protocol", ENCODED),
    "gzip of an error": (plain(500, ZIPPED, "Content-Encoding: gzip"), "status", "HTTP 500: "),
    "an encoding that changes nothing": (
        head("Content-Encoding: identity") + STREAM[len(HEAD) :],
        "ok",
        "",
    ),
    "two choices in an event": (HEAD + chunk(event(BOTH)) + END, "protocol", CHOICES),
    "two choices in turn": (
        HEAD + (TOKEN + chunk(event(second(1)))) * 20 + END,
        "protocol",
        CHOICES,
    ),
    "large headers": (
        head(*[f"X-{n}: {'x' * 8000}" for n in range(25)]) + STREAM[len(HEAD) :],
        "ok",
        "",
    ),
    "a huge header": (
        head("X: " + "x" * (MAX_HEAD_BYTES + 70_000)) + STREAM[len(HEAD) :],
        "protocol",
        LONG_HEAD,
    ),
    "too many headers": (head(*["X: y"] * 60_000) + STREAM[len(HEAD) :], "protocol", LONG_HEAD),
    "a huge trailer": (
        STREAM[:-2] + b"X: " + b"x" * (MAX_HEAD_BYTES + 70_000),
        "protocol",
        LONG_HEAD,
    ),
    "never the answer": (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 12_000, "protocol", LONG_HEAD),
    "a huge content type": (STREAM.replace(b"charset", b"x" * 9_000), "ok", ""),
    "an odd content type": (
        plain(200, b"{}").replace(b"application/json", b"\xff" * 9_000),
        "protocol",
        "the server answered ÿÿÿ",
    ),
    "an event of 10 MB": (
        HEAD + TOKEN + chunk(event(delta(content="x" * 10_000_000))),
        "protocol",
        "an event of the stream is longer than 1 MiB",
    ),
    "10 MB without a line end": (
        HEAD + TOKEN + chunk(b"x" * 10_000_000),
        "protocol",
        "an event of the stream is longer than 1 MiB",
    ),
    "an error of 3 MB": (plain(500, error("no " * 1_000_000)), "status", "HTTP 500: "),
    "words for the terminal": (
        plain(500, error("\x1b[2J\x07gone\u202e")),
        "status",
        "HTTP 500: [2J gone",
    ),
    "429": (plain(429, error("slow down"), "Retry-After: 3600"), "status", "HTTP 429: slow down"),
    "503": (plain(503, b"", "Retry-After: Wed, 21 Oct 2099 07:28:00 GMT"), "status", "HTTP 503"),
    "a redirect": (plain(302, b"", "Location: http://127.0.0.2/"), "status", "HTTP 302"),
    "early close": (HEAD + TOKEN[:-4], "truncated", CLOSED),
    "close in the head": (HEAD[:40], "truncated", CLOSED),
    "a length too long": (plain(200, b"{}").replace(b": 2", b": 9"), "truncated", CLOSED),
    "two lengths": (plain(200, b"{}", "Content-Length: 7"), "protocol", "the answer is not HTTP"),
    "a length and chunks": (
        head("Content-Length: 7") + STREAM[len(HEAD) :],
        "protocol",
        "the answer is not HTTP",
    ),
    "a negative chunk": (HEAD + b"-5\r\n" + TOKEN, "protocol", "the answer is not HTTP"),
    "an endless chunk size": (HEAD + b"f" * 5_000, "protocol", "the answer is not HTTP"),
    "another protocol": (
        b"HTTP/1.1 101 -\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
        "protocol",
        "the answer is not HTTP",
    ),
    "no JSON": (
        HEAD + chunk(event(b'{"choices": [{"in')) + END,
        "protocol",
        "an event is not JSON",
    ),
    "deep JSON": (HEAD + chunk(event(b"[" * 100_000)) + END, "protocol", "an event is not JSON"),
    "a list": (HEAD + chunk(event([1])) + END, "protocol", NO_COMPLETION),
    "choices as a number": (HEAD + chunk(event({"choices": 7})) + END, "protocol", NO_COMPLETION),
    "more tokens than there can be": (
        HEAD + TOKEN + chunk(event(delta(usage=1 << 50, content="a"))) + END,
        "protocol",
        "the server counts 1,125,899,906,842,624 output tokens",
    ),
    "a book as the reason": (
        HEAD + TOKEN + chunk(event(delta(finish="x" * 500_000))) + END,
        "ok",
        "",
    ),
}


def cut(rng: random.Random, data: bytes) -> list[Step]:
    """In up to six sends, some of them late; the connection is closed at the end."""
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(6)))
    steps: list[Step] = []
    for start, end in pairwise([0, *cuts, len(data)]):
        if start < end:
            steps += [*send(data[start:end]), ["sleep", rng.choice((0, 1))]]
    return [*steps, ["close"]]


def said(record: RequestRecord) -> str:
    """Its sentence; fails unless a person may read it."""
    assert record.error.isprintable()
    assert len(record.error) <= 300
    assert bool(record.error) == (record.outcome is not Outcome.ok)
    return record.error


def check_hostile(record: RequestRecord, name: str) -> None:
    """It has the outcome and the sentence of that answer."""
    _, outcome, sentence = HOSTILE[name]
    assert record.outcome.value == outcome, name
    assert said(record)[: len(sentence)] == sentence, name


@pytest.mark.usefixtures("each_reader")
@pytest.mark.parametrize("seed", SEEDS)
def test_hostile_answers(port: int, seed: int) -> None:
    """Each has its outcome and sentence, however it is cut; the next request is answered."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    names = [*HOSTILE]
    rng.shuffle(names)
    with case(port) as it:
        pool = Pool(AT_ONCE)
        for i, name in enumerate(names):
            answer, _, _ = HOSTILE[name]
            pool.spawn(it.ask, 2 * i, cut(rng, answer))
            pool.spawn(it.ask, 2 * i + 1, WHOLE)
        pool.join()
        assert it.reader.link.flush(20)
        figures = it.reader.figures()
    for i, name in enumerate(names):
        check_hostile(it.records[2 * i], name)
        good = it.records[2 * i + 1]
        assert good.outcome.value == "ok"
        assert len(good.at_ns) == 3
    assert len(it.records) == 2 * len(names)
    for record in it.records.values():
        assert len(record.finish_reason) <= 40
    assert figures["stamp_source"] in {"kernel", "read"}


UNCHUNKED = HEAD.replace(b"Transfer-Encoding: chunked\r\n", b"") + b"".join(EVENTS)
# with chunks, and until the connection's end
GOOD: Final = (STREAM, UNCHUNKED)


def mutant(rng: random.Random) -> bytes:
    """A good answer with a few bytes changed, lost, doubled or replaced."""
    data = bytearray(rng.choice(GOOD))
    for _ in range(rng.randrange(1, 5)):
        i, j = sorted(rng.randrange(len(data)) for _ in range(2))
        j = min(j, i + rng.choice((1, 8, 200)))
        kind = rng.randrange(5)
        if kind == 0:
            data[i] = rng.randrange(256)
        elif kind == 1:
            del data[i:j]
        elif kind == 2:
            data[i:i] = data[i:j]
        elif kind == 3:
            data[i:j] = rng.randbytes(j - i)
        elif i > 1:
            del data[i:]
    return bytes(data)


@pytest.mark.usefixtures("each_reader")
def test_mutants(port: int) -> None:
    """Whatever becomes of the bytes: one record each, with an outcome and a sentence."""
    rng = random.Random(16)  # noqa: S311 - no secret
    with case(port, total_ns=20 * SECOND) as it:
        pool = Pool(AT_ONCE)
        for number in range(MUTANTS):
            pool.spawn(it.ask, number, cut(rng, mutant(rng)))
        pool.join()
        assert it.reader.link.flush(20)
    assert sorted(it.records) == list(range(MUTANTS))
    ends = {record.outcome.value for record in it.records.values() if said(record) is not None}
    assert ends == {"ok", "truncated", "protocol"}


def rss_mb(*pids: int) -> float:
    """What these processes have resident."""
    return sum(psutil.Process(pid).memory_info().rss for pid in pids) / 1e6


@pytest.mark.usefixtures("each_reader")
@pytest.mark.parametrize(
    "piece",
    [TOKEN * 200, chunk(event({"choices": []})) * 300, chunk(b"\n" * 60_000)],
    ids=["tokens", "other events", "no events"],
)
def test_an_answer_without_an_end(port: int, piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As fast as the loopback carries it: cut off at a size, in memory of that size."""
    most = 16 << 20
    monkeypatch.setattr(reader_module, "MAX_ANSWER_BYTES", most)
    with case(port) as it:
        it.ask(0, WHOLE)
        before = rss_mb(psutil.Process().pid, it.reader.link.pid)
        exchange = it.ask(1, [*send(HEAD), ["repeat", piece.decode("latin-1"), 1 << 30]])
        assert it.reader.link.flush(20)
        grew = rss_mb(psutil.Process().pid, it.reader.link.pid) - before
        assert it.ask(2, WHOLE).outcome is Outcome.ok
        assert it.reader.link.flush(20)
    record = it.records[1]
    assert record.outcome.value == "protocol"
    assert said(record) == reader_module.TOO_MUCH
    assert exchange.outcome is record.outcome
    assert most < exchange.n_bytes
    # the rows and the bytes on their way, in both processes, and what was read until it was seen
    assert grew < 600


def test_an_answer_that_drips(port: int) -> None:
    """It never ends and never pauses: the limit of the whole request ends it."""
    drip = [["sleep", 20], *send(TOKEN)] * 500
    with case(port, total_ns=500 * MS) as it:
        _, record = it.one([*send(HEAD), *drip])
    assert record.outcome.value == "timeout"
    assert said(record) == "the whole request took longer than 0.5 s"
    assert len(record.at_ns) > 2


def test_retry_after_is_not_waited_for(port: int) -> None:
    """The load is the user's: the next request follows at once, on the same connection."""
    busy = send(plain(429, error("slow down"), "Retry-After: 3600"))
    with case(port) as it:
        for number, script in enumerate((busy, busy, WHOLE)):
            it.ask(number, script)
        assert it.reader.link.flush(60)
        records = [it.records[n] for n in range(3)]
    assert [record.outcome.value for record in records] == ["status", "status", "ok"]
    assert [record.connect_ns > 0 for record in records] == [True, False, False]


@pytest.mark.parametrize("again", [WHOLE, [["close"]]], ids=["served", "closed again"])
@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_that_was_closed_before(
    port: int, again: list[Step], reset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the request was sent: it is sent once more, counted, and its time runs from the first.

    Where the connection is reset, the server may have read it; nobody can tell.
    """
    with case(port) as it:
        it.ask(0, WHOLE if reset else [*WHOLE, ["close"]])
        blocking_sleep(0.05)  # the reader must not see the end yet
        monkeypatch.setattr(Connection, "is_quiet", lambda _: True)
        before_ns = it.reader.clock.now_ns()
        first = [["sleep", 100], ["reset"]] if reset else again
        exchange = it.ask(1, first, again)
        assert it.reader.link.flush(60)
        record = it.records[1]
        figures = it.reader.figures()
    assert figures["resent"] == 1
    assert exchange.outcome == record.outcome
    assert record.outcome.value == ("ok" if again is WHOLE else "truncated")
    if reset:
        assert record.done_ns - record.sent_ns >= 100 * MS
    else:
        assert record.done_ns >= record.sent_ns
    assert record.sent_ns >= before_ns
    assert record.connect_ns == 0


@pytest.mark.parametrize(("stalls", "resent"), [(True, 1), (False, 0)])
def test_a_reset_while_the_loop_stands_still(port: int, stalls: bool, resent: int) -> None:
    """It counts as having come when the loop stopped looking, not when the loop noticed it."""
    reset_ms = 200 if stalls else 1400
    with case(port) as it:
        it.ask(0, WHOLE)
        if stalls:
            gevent.spawn_later(0.05, blocking_sleep, 1.5)
        it.ask(1, [["sleep", reset_ms], ["reset"]], WHOLE)
        assert it.reader.link.flush(60)
        figures = it.reader.figures()
        record = it.records[1]
    assert figures["resent"] == resent
    assert record.outcome.value == ("ok" if resent else "truncated")
    assert record.done_ns - record.sent_ns >= reset_ms * MS


@pytest.mark.parametrize(
    "first",
    [
        [["close"]],
        [["sleep", 300], ["close"]],  # it had worked on it
        [*send(b"H"), ["close"]],
    ],
    ids=["closed", "closed late", "closed in the head"],
)
def test_a_request_that_was_dropped(port: int, first: list[Step]) -> None:
    """The server has got it on a kept connection and closes: a failure, and not sent again."""
    with case(port) as it:
        it.ask(0, WHOLE)
        exchange = it.ask(1, first, WHOLE)
        assert it.reader.link.flush(60)
        record = it.records[1]
        figures = it.reader.figures()
    assert record.outcome.value == "truncated"
    assert figures["resent"] == 0
    assert exchange.outcome is record.outcome
    assert said(record)


@pytest.mark.usefixtures("each_reader")
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("more", [STREAM, b"HTTP/1.1 500 -\r\n\r\n", b"\r\nx"])
def test_more_than_was_asked_for(port: int, more: bytes, late: bool) -> None:
    """What follows an answer is not the next one's: that connection is not used again."""
    script = [*send(STREAM), ["sleep", 20], *send(more)] if late else send(STREAM + more)
    with case(port) as it:
        it.ask(0, script)
        gevent.sleep(0.1 if late else 0)
        it.ask(1, WHOLE)
        assert it.reader.link.flush(60)
        for number in (0, 1):
            assert it.records[number].outcome.value == "ok"
            assert len(it.records[number].at_ns) == 3
        assert it.log()["connections"] > 1
        assert it.records[1].connect_ns > 0


def test_idle_connections_that_the_server_closed(port: int) -> None:
    """Found closed before the request is sent: a new one is opened, and nothing is sent again."""
    with case(port) as it:
        for number in range(4):
            it.ask(number, [*WHOLE, ["close"]])
            gevent.sleep(0.05)
        assert it.reader.link.flush(60)
        assert it.reader.figures()["resent"] == 0
    assert {record.outcome.value for record in it.records.values()} == {"ok"}
