"""A TCP balancer: passes each connection to one of several servers, which may come and go.

It knows nothing of HTTP. A client that keeps its connection open stays with its server, as behind a
Kubernetes Service.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.server.address import LOOPBACK, Address

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

READ_BYTES: Final = 65_536
ROUND_ROBIN: Final = "round robin"
LEAST_CONNECTIONS: Final = "least connections"


@dataclass(slots=True, eq=False)
class Backend:
    """A server behind the balancer."""

    url: str
    address: Address
    connections: int = 0


class Balancer:
    """Listens at `url` until `close`, which cuts all connections; runs in a thread of its own."""

    def __init__(
        self,
        urls: Iterable[str] = (),
        choose: str = LEAST_CONNECTIONS,
        answers: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """`answers`: by a connection's first bytes, what it is answered here, and then closed."""
        self.backends: list[Backend] = []
        self._turn, self._choose, self._answers = 0, choose, answers or {}
        self._stop = asyncio.Event()
        for url in urls:
            self.add(url)
        listening: Future[tuple[asyncio.AbstractEventLoop, int]] = Future()
        run = lambda: asyncio.run(self._run(listening))  # noqa: E731
        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        self._loop, port = listening.result()
        self.url = f"http://{LOOPBACK}:{port}"

    def add(self, url: str) -> None:
        """From now on it is given connections; a server that is added twice has two turns."""
        self.backends = [*self.backends, Backend(url, Address.parse(url))]

    def remove(self, url: str) -> None:
        """It is given no more connections; those that are open go on."""
        self.backends = [one for one in self.backends if one.url != url]

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _run(self, listening: Future[tuple[asyncio.AbstractEventLoop, int]]) -> None:
        server = await asyncio.start_server(self._serve, LOOPBACK, 0, backlog=1024)
        port = server.sockets[0].getsockname()[1]
        listening.set_result((asyncio.get_running_loop(), port))
        await self._stop.wait()
        server.close()  # `asyncio.run` then cancels the connections

    def _in_order(self) -> list[Backend]:
        """All servers as they are tried: one that refuses the connection is passed over."""
        turn = self._turn % max(len(self.backends), 1)
        self._turn += 1
        in_turn = self.backends[turn:] + self.backends[:turn]
        if self._choose == LEAST_CONNECTIONS:
            in_turn.sort(key=lambda one: one.connections)
        return in_turn

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = await reader.read(READ_BYTES) if self._answers else b""
            answer = next((a for start, a in self._answers.items() if first.startswith(start)), b"")
            writer.write(answer)
            for backend in [] if answer else self._in_order():
                with suppress(ConnectionRefusedError):
                    await self._pass_on(backend, first, reader, writer)
                    break
        except (OSError, asyncio.CancelledError):
            pass  # the task of a connection has nobody to tell
        finally:
            writer.close()

    async def _pass_on(
        self,
        backend: Backend,
        first: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Pass on both directions until both have ended."""
        backend.connections += 1  # before the first await: the next connection must see it
        try:
            back, forth = await asyncio.open_connection(backend.address.host, backend.address.port)
            try:
                forth.write(first)
                await asyncio.gather(_pump(reader, forth), _pump(back, writer))
            finally:
                forth.close()
        finally:
            backend.connections -= 1


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Every byte of one direction passes here."""
    with suppress(OSError):
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
