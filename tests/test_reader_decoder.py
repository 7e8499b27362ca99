"""The decoder process: it may die, and nothing is lost."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import gevent
import pytest
from reader_cases import Case, Step, case, send, wire_server
from wire_examples import HEAD, chunk, delta, event

from harness.drive import decoding
from harness.measure.records import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.measure.records import RequestRecord

pytestmark = pytest.mark.usefixtures("each_reader")
TOKENS = 150
GAP_MS = 20


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server that does as it is told."""
    with wire_server() as port:
        yield port


def signal_decoder(it: Case, number: int) -> None:
    """Send it a signal; while decoding happens in this process, -1 would mean every process."""
    pid = it.reader.link.pid
    assert pid > 0
    os.kill(pid, number)


def stream() -> list[Step]:
    """Three seconds of tokens, so that there are parts; every tenth is cut in two."""
    script = send(HEAD)
    for n in range(1, TOKENS + 1):
        data = chunk(event(delta(usage=n, content="x")))
        script += [["sleep", GAP_MS], *(send(data[:20], data[20:]) if n % 10 == 0 else send(data))]
    return [*script, *send(chunk(event(b"[DONE]")) + b"0\r\n\r\n")]


def whole(it: Case, numbers: range) -> None:
    """Every token of every stream is there once, in order; the parts are pieces of the records."""
    assert sorted(it.records) == list(numbers)
    for number in numbers:
        record = it.records[number]
        assert (record.outcome, record.error) == (Outcome.ok, "")
        assert (list(record.tokens), record.output_tokens) == ([1] * TOKENS, TOKENS)
        assert sorted(record.at_ns) == list(record.at_ns)
        parts = [p for p in it.parts if p.number == number]
        assert parts
        joined = [at for part in parts for at in part.at_ns]
        assert joined == list(record.at_ns)[: len(joined)]
    assert it.reader.figures()["events"] == TOKENS * len(numbers)


@pytest.mark.parametrize("kills", [0, 1, 3])
def test_a_killed_decoder_is_replaced(port: int, kills: int) -> None:
    """Killed at any moment, its successor goes on from the last checkpoint."""
    numbers = range(100 * kills, 100 * kills + 8)
    with case(port) as it:
        users = [it.start(number, stream()) for number in numbers]
        for _ in range(kills):
            gevent.sleep(0.85)
            signal_decoder(it, signal.SIGKILL)
        gevent.joinall(users)
        assert it.reader.flush(15)
        whole(it, numbers)
        assert it.reader.figures()["decoder_restarts"] == kills


def test_without_any_decoder_process(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """When new ones die at once, decoding goes on in this process."""
    numbers = range(1000, 1004)
    with case(port) as it:
        users = [it.start(number, stream()) for number in numbers]
        gevent.sleep(1.3)
        monkeypatch.setattr(decoding, "MOST_RESTARTS", 0)
        signal_decoder(it, signal.SIGKILL)
        gevent.joinall(users)
        assert it.reader.flush(15)
        whole(it, numbers)
        assert it.reader.link.pid == -1


def test_a_decoder_that_never_answers_is_done_without(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at its start: waiting for it ends, and decoding goes on in this process."""
    monkeypatch.setattr(decoding, "START_S", 0.3)
    monkeypatch.setattr("harness.drive.pipe.EXIT_S", 0.2)
    with case(port) as it:
        signal_decoder(it, signal.SIGSTOP)
        it.reader.link.ready()
        assert it.reader.link.pid == -1
        users = [it.start(number, stream()) for number in range(3000, 3002)]
        gevent.joinall(users)
        assert it.reader.flush(15)
        whole(it, range(3000, 3002))


def test_a_stuck_decoder_does_not_hold_up_the_end(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped, not dead: closing decodes what it was given."""
    monkeypatch.setattr(decoding, "CLOSE_S", 0.5)
    monkeypatch.setattr("harness.drive.pipe.EXIT_S", 0.2)
    numbers = range(2000, 2002)
    with case(port) as it:
        users = [it.start(number, stream()) for number in numbers]
        gevent.sleep(1.5)
        signal_decoder(it, signal.SIGSTOP)
        gevent.joinall(users)
        assert it.records == {}
        it.reader.close()
        whole(it, numbers)


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
            it.ask(number, send(HEAD + chunk(event(b"[DONE]")) + b"0\r\n\r\n"))
            assert it.reader.flush(10)
        assert sorted(it.records) == [3001]
    assert "disk full" in capsys.readouterr().err
