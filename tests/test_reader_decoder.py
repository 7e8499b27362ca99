"""The decoder process: it writes what it makes, and without it a run cannot go on."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import gevent
import msgpack
import pytest
import zmq
from reader_cases import Step, case, send, wire_server
from wire_examples import HEAD, chunk, delta, event

from harness.reader import decoder_link as decoding
from harness.reader.raw_batch import Output
from harness.records.codec import decode
from harness.records.request_record import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.records.request_record import RequestRecord

TOKENS = 150
GAP_MS = 20
END = chunk(event(b"[DONE]")) + b"0\r\n\r\n"
ONE = HEAD + chunk(event(delta(content="x"))) + END


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server that does as it is told."""
    with wire_server() as port:
        yield port


def stream() -> list[Step]:
    """Three seconds of tokens, so that there are parts; every tenth is cut in two."""
    script = send(HEAD)
    for n in range(1, TOKENS + 1):
        data = chunk(event(delta(usage=n, content="x")))
        pieces = (data[:20], data[20:]) if n % 10 == 0 else (data,)
        script += [["sleep", GAP_MS], *send(*pieces)]
    return [*script, *send(END)]


def until(condition: Callable[[], object]) -> None:
    """Wait for it, ten seconds at most."""
    with gevent.Timeout(10):
        while not condition():
            gevent.sleep(0.01)


def check_stream(record: RequestRecord, parts: list[RequestRecord]) -> None:
    """It has every token in order, and its parts begin it."""
    assert record.outcome == Outcome.ok
    assert record.error == ""
    assert list(record.tokens) == [1] * TOKENS
    assert record.output_tokens == TOKENS
    assert sorted(record.at_ns) == list(record.at_ns)
    assert parts
    joined = [at for part in parts for at in part.at_ns]
    assert joined == list(record.at_ns)[: len(joined)]


@pytest.mark.usefixtures("each_reader")
def test_every_token_is_in_the_records_and_in_the_parts(port: int) -> None:
    """Every token of every stream is there once, in order; the parts are pieces of the records."""
    numbers = range(8)
    with case(port) as it:
        gevent.joinall([it.start(number, stream()) for number in numbers])
        assert it.reader.link.flush(15)
        assert sorted(it.records) == list(numbers)
        for number in numbers:
            parts = [part for part in it.parts if part.number == number]
            check_stream(it.records[number], parts)
        assert it.reader.figures()["events"] == TOKENS * len(numbers)
        assert it.reader.link.ended == len(numbers)
        assert it.reader.link.trouble == ""


def test_a_killed_decoder_is_said_and_nothing_waits_for_it(port: int, tmp_path: Path) -> None:
    """What had ended is in its file; requests go on to their end, which nobody records."""
    file = tmp_path / "records.5.msgpack"
    said = list[str]()
    with case(port, output=Output(str(file), worker=5)) as it:
        link = it.reader.link
        link.on_trouble = said.append
        for number in range(3):
            it.ask(number, send(ONE))
        users = [it.start(number, stream()) for number in (3, 4)]
        assert it.reader.link.flush(10)
        until(lambda: link.events)
        os.kill(link.pid, signal.SIGKILL)
        until(lambda: link.trouble)
        begun = time.monotonic()
        assert not it.reader.link.flush(60)
        gevent.joinall(users)
        for user in users:
            assert user.get().outcome == Outcome.ok
        it.reader.close()
        assert time.monotonic() - begun < 30
    assert said == [link.trouble]
    assert f"(pid {link.pid}) ended in the middle of the run by signal 9" in link.trouble
    got = decode(file.read_bytes())
    assert [r.number for r in got.records] == [0, 1, 2]
    assert got.torn_bytes == 0
    assert got.damaged_bytes == 0
    assert sorted(it.records) == [0, 1, 2]
    assert link.batch.size < decoding.FLUSH_BYTES  # what was read since is not piled up


def test_a_decoder_that_never_answers(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped at its start: waiting for it ends with a sentence, and it is killed."""
    monkeypatch.setattr(decoding, "START_S", 0.3)
    with case(port) as it:
        link = it.reader.link
        os.kill(link.pid, signal.SIGSTOP)
        assert not link.ready()
        assert "did not answer within 0 s of its start" in link.trouble
        assert not it.reader.link.flush(60)
        with pytest.raises(ProcessLookupError):
            os.kill(link.pid, 0)


def test_a_stuck_decoder_does_not_hold_up_the_end(
    port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Stopped, not dead: closing waits a while, then says so and kills it."""
    monkeypatch.setattr(decoding, "CLOSE_S", 0.5)
    file = tmp_path / "records.5.msgpack"
    with case(port, output=Output(str(file), worker=5)) as it:
        it.ask(0, send(ONE))
        assert it.reader.link.flush(10)
        os.kill(it.reader.link.pid, signal.SIGSTOP)
        it.ask(1, send(ONE))
        it.reader.close()
        assert "did not answer for 0 s at the end of the run" in it.reader.link.trouble
    assert [r.number for r in decode(file.read_bytes()).records] == [0]


def take_a_batch(master: zmq.Socket[bytes]) -> None:
    """What a master does: it takes a batch of records, and says so."""
    who, message = master.recv_multipart()
    _, batch, *_ = msgpack.unpackb(message)
    taken = {"taken": batch["batch"] + 1, "sent_ns": batch["sent_ns"], "at_ns": 0}
    master.send_multipart([who, msgpack.packb(("", taken, ""))])


def test_a_master_that_takes_nothing(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records pile up at the decoder to a limit: then requests wait, counted, until they are taken.

    What is at the decoder stays in its file meanwhile, and nothing is lost.
    """
    monkeypatch.setattr(decoding, "MOST_UNSENT", 100)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as master:
        at = master.bind_to_random_port("tcp://127.0.0.1")
        with case(port, output=Output(worker=5, master=("127.0.0.1", at, "worker"))) as it:
            link = it.reader.link
            it.ask(0, stream())
            assert not it.reader.link.flush(2)
            late = it.start(1, send(ONE))
            late.join(1)
            assert late.ready() is False
            assert link.held > 0
            with gevent.Timeout(10):
                while not late.ready():
                    gevent.sleep(0.05)
                    if master.poll(0):
                        take_a_batch(master)
            assert late.get().outcome is Outcome.ok


def test_a_sink_that_fails_loses_nobody_elses_records(
    port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its error is printed; the next records come."""
    with case(port) as it:
        fail = [True]
        put = it.put

        def failing(records: list[RequestRecord]) -> None:
            whole = any(record.outcome is not Outcome.open for record in records)
            if whole and fail:  # on a busy machine a part may come before
                fail.clear()
                raise RuntimeError("disk full")
            put(records)

        it.reader.link._give = failing  # noqa: SLF001 - the sink that the reader was given
        for number in (3000, 3001):
            it.ask(number, send(ONE))
            assert it.reader.link.flush(10)
        assert sorted(it.records) == [3001]
    assert "disk full" in capsys.readouterr().err
