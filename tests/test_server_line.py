"""Questions over one kept connection: the server sees one, and one that it closes costs nothing."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from little_servers import http, little_server

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.errors import ServerUnreachable
from harness.senders.scraper import Scraper
from harness.server.access import TargetAccess
from harness.server.address import Address
from harness.server.http_exchange import HttpConnection, fetch
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from little_servers import LittleServer

    from harness.records.samples import ServerSample

GOOD = http(b"5", kind="text/plain")
CHUNKED = b"HTTP/1.1 200 -\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n5\r\n0\r\n\r\n"
LAST = b"HTTP/1.1 200 -\r\nConnection: close\r\nContent-Length: 1\r\n\r\n5"
ENDLESS = b"HTTP/1.1 200 -\r\n\r\n5"  # its end is the connection's
EMPTY = b"HTTP/1.1 200 -\r\nContent-Length: 0\r\n\r\n"


class Keeper:
    """Answers `replies` in turn; b"" closes without a word. Keeps each connection while it can."""

    def __init__(self, replies: list[bytes]) -> None:
        self.replies = iter(replies)
        self.connections: list[int] = []  # requests on each
        self.heads: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = self.listener.accept()[0]
                self.connections.append(0)
                with connection:
                    while self._answer(connection):
                        pass

    def _answer(self, connection: socket.socket) -> bool:
        head = connection.recv(65_536)
        if not head:
            return False
        self.heads.append(head)
        self.connections[-1] += 1
        reply = next(self.replies, b"")
        connection.sendall(reply)
        return reply not in (b"", LAST, ENDLESS)


@contextlib.contextmanager
def keeper(*replies: bytes) -> Iterator[tuple[Keeper, TargetAccess]]:
    """A server for the length of a `with`, and how to reach it."""
    server = Keeper(list(replies))
    port = server.listener.getsockname()[1]
    try:
        yield server, TargetAccess(Address.parse(f"http://127.0.0.1:{port}"), answer_ns=300 * MS)
    finally:
        server.listener.shutdown(socket.SHUT_RDWR)
        server.listener.close()
        server.thread.join()


@pytest.mark.parametrize(
    ("replies", "connections"),
    [
        ([GOOD] * 4, [4]),
        ([CHUNKED, GOOD, CHUNKED], [3]),
        ([LAST, GOOD, GOOD], [1, 2]),  # it says that it closes
        ([ENDLESS, GOOD], [1, 1]),
        # closed without a word, as after some idle seconds: asked again, nobody notices
        ([GOOD, b"", GOOD, GOOD], [2, 2]),
    ],
)
def test_one_connection(replies: list[bytes], connections: list[int]) -> None:
    """As many connections as the server makes necessary, and every answer is whole."""
    with keeper(*replies) as (server, access), contextlib.closing(HttpConnection(access)) as line:
        got = [line.fetch("/metrics").body for reply in replies if reply]
    assert server.connections == connections
    assert set(got) == {b"5"}
    assert [head for head in server.heads if b"Connection: close" in head] == []


def test_an_empty_answer() -> None:
    """An answer without a body keeps the connection too."""
    with (
        keeper(EMPTY, GOOD) as (server, access),
        contextlib.closing(HttpConnection(access)) as line,
    ):
        assert line.fetch("/health").body == b""
        assert line.fetch("/metrics").body == b"5"
    assert server.connections == [2]


@pytest.mark.parametrize(
    ("replies", "sentence"),
    [
        ([GOOD, b"", b""], "it closes the connection early"),  # and again on a new connection
        ([GOOD, b"HTTP/1.1 200 -\r\nContent-Length: 9\r\n\r\n5"], "does not finish an answer"),
        ([GOOD, b"SSH-2.0-OpenSSH_9.6\r\n"], "does not answer in HTTP"),
    ],
)
def test_an_answer_that_fails(replies: list[bytes], sentence: str) -> None:
    """A bad answer says what a single question would, and the next one has a fresh connection."""
    with (
        keeper(*replies, GOOD) as (server, access),
        contextlib.closing(HttpConnection(access)) as line,
    ):
        assert line.fetch("/metrics").body == b"5"
        with pytest.raises(ServerUnreachable, match=sentence):
            line.fetch("/metrics")
        assert server.connections[0] == 2


def test_a_single_question_hangs_up() -> None:
    """`fetch` tells the server that nothing follows."""
    with keeper(GOOD) as (server, access):
        assert fetch(access, "/metrics").body == b"5"
    assert b"Connection: close" in server.heads[0]


@contextlib.contextmanager
def scraping() -> Iterator[tuple[Scraper, list[object], LittleServer]]:
    """A scraper, its samples, and the server that it asks, which closes after each answer."""
    samples: list[object] = []
    reply = http(b"vllm:num_requests_running 2\n", kind="text/plain")
    with little_server(lambda *_: reply) as server:
        address = Address.parse(f"http://127.0.0.1:{server.port}")
        scraper = Scraper({"": TargetAccess(address)}, samples.append)
        yield scraper, samples, server
        scraper.stop()


def test_a_scraper_without_keep_alive() -> None:
    """A server that closes after each answer is scraped all the same, and no scrape is lost."""
    with scraping() as (scraper, samples, server):
        for _ in range(3):
            scraper.once()
    assert len(samples) == 3
    assert scraper.failed == {}
    assert server.paths == ["/metrics"] * 3


def test_the_load_waits_for_the_first_scrape() -> None:
    """What the server counted before the load must not be missing from what the load made."""
    with scraping() as (scraper, samples, _):
        scraper.start()
        got = len(samples)
    assert got == 1


ROUTER = b"""\
vllm:num_requests_running{model_name="mine"} 2
vllm:generation_tokens_total{model_name="mine"} 50
vllm:num_requests_running{model_name="other"} 7
vllm:generation_tokens_total{model_name="other"} 900
"""


@pytest.mark.parametrize(
    ("model", "tokens", "failed"),
    [
        ("mine", [50.0], ""),
        ("", [950.0], ""),
        ("third", [], "has the metrics of several models (mine, other) and none of third"),
    ],
)
def test_a_router_of_several_models(model: str, tokens: list[float], failed: str) -> None:
    """What another model generated is no surplus of ours: nobody is taken for another client."""
    samples: list[ServerSample] = []
    with little_server(lambda *_: http(ROUTER, kind="text/plain")) as server:
        address = Address.parse(f"http://127.0.0.1:{server.port}")
        scraper = Scraper({"": TargetAccess(address)}, samples.append, model=model)
        scraper.once()
        scraper.stop()
    assert [one.generation_tokens_total for one in samples] == tokens
    assert failed in "".join(scraper.failed)


def test_a_scraper_of_the_engine() -> None:
    """The engine sees one connection, whose figures follow."""
    with start_engine(EngineConfig()) as engine:
        scraper = Scraper({"": TargetAccess(Address.parse(engine.url))})
        for _ in range(3):
            scraper.once()
        sample = scraper.latest()
        scraper.stop()
    assert sample is not None
    assert sample.running == 0
    assert sample.waiting == 0
    assert scraper.failed == {}
