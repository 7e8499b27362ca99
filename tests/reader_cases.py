"""A reader against `scripted_wire`: start both, send scripts, get records and the server's log."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
from wire_examples import EVENTS, HEAD, chunk

from harness.core.timeouts import Timeouts
from harness.reader.client_connection import Place
from harness.reader.reader import Reader
from harness.records.request_record import Outcome, RequestRecord
from harness.units import SECOND
from harness.wire.http import post

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.reader.open_stream import Exchange

Step = list[Any]
NAMES = itertools.count()  # one server may serve many cases
LAST = b"0\r\n\r\n"


def send(*pieces: bytes) -> list[Step]:
    """One send for each piece."""
    return [["send", piece.decode("latin-1")] for piece in pieces]


WHOLE = send(HEAD, *map(chunk, EVENTS[:-1]), chunk(EVENTS[-1]) + LAST)  # a good answer, 3 tokens


@contextlib.contextmanager
def wire_server(certificate: Path | None = None) -> Iterator[int]:
    """Its port."""
    script = Path(__file__).with_name("scripted_wire.py")
    arguments = [sys.executable, str(script), *([str(certificate)] if certificate else [])]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


class Case:
    """A reader and what it gave."""

    def __init__(self, port: int, **options: Any) -> None:
        """Options are Reader's; `tls` and `host` are Place's, durations in ns are Timeouts'."""
        self.port = port
        self.name = next(NAMES)
        self.records: dict[int, RequestRecord] = {}
        self.parts: list[RequestRecord] = []
        given = {name: options.pop(name) for name in list(options) if name.endswith("_ns")}
        timeouts = Timeouts(connect_ns=2 * SECOND, **given)
        host, tls = options.pop("host", "127.0.0.1"), options.pop("tls", None)
        self.reader = Reader(5, self.put, Place(host, port, tls, timeouts), **options)

    def put(self, records: list[RequestRecord]) -> None:
        """The reader's sink; a record comes once."""
        for record in records:
            if record.outcome is Outcome.open:
                self.parts.append(record)
            else:
                assert record.number not in self.records
                self.records[record.number] = record

    def ask(
        self, number: int, script: list[Step], again: list[Step] | None = None, **options: Any
    ) -> Exchange:
        """One request, in the calling greenlet."""
        data = post("x", "/", {"id": f"{self.name}-{number}", "script": script, "again": again})
        return self.reader.request(data, number, 3, 4, **options)

    def start(self, number: int, script: list[Step], again: list[Step] | None = None) -> Any:
        """One request in a greenlet of its own."""
        return gevent.spawn(self.ask, number, script, again)

    def one(
        self, script: list[Step], again: list[Step] | None = None
    ) -> tuple[Exchange, RequestRecord]:
        """Ask, wait, and agree with the record."""
        exchange = self.ask(0, script, again)
        assert self.reader.link.flush(10)
        return exchange, self.records[0]

    def wait_for_heads(self, streams: int) -> None:
        """Until that many open requests have been answered with a head."""
        opened = self.reader._open  # noqa: SLF001 - nothing else says that the head has been read
        with gevent.Timeout(10):
            while sum(stream.head_ns >= 0 for stream in opened.values()) < streams:
                gevent.sleep(0.001)

    def log(self) -> dict[str, Any]:
        """The server's."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request("GET", "/log")
            log: dict[str, Any] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return log

    def to_records_ns(self) -> int:
        """The records' clock minus the server's, CLOCK_REALTIME."""
        # Whoever is preempted between the two clocks finds too little: the most of many is right.
        return max(self.reader.clock.now_ns() - time.time_ns() for _ in range(50))

    def sends(self, number: int) -> list[tuple[int, int]]:
        """[clock before, clock after] of each send of a request, on the records' clock."""
        log = self.log()["sends"][f"{self.name}-{number}"]
        to_records = self.to_records_ns()
        return [(before + to_records, after + to_records) for before, after in log]


@contextlib.contextmanager
def case(port: int, **options: Any) -> Iterator[Case]:
    """A case, closed at the end."""
    it = Case(port, **options)
    try:
        yield it
    finally:
        it.reader.close()
