"""A TCP balancer: passes each connection to one of several servers, which may come and go.

It knows nothing of HTTP. A client that keeps its connection open stays with its server, as behind a
Kubernetes Service.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import Future
from contextlib import closing, suppress
from itertools import count
from typing import TYPE_CHECKING, Final

from harness.server.address import LOOPBACK, Address

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

READ_BYTES: Final = 65_536
ROUND_ROBIN: Final = "round robin"
LEAST_CONNECTIONS: Final = "least connections"


class Balancer:
    """Listens at `url` until `close`, which cuts all connections; runs in a thread of its own."""

    def __init__(
        self,
        servers: Iterable[str] = (),
        choose: str = LEAST_CONNECTIONS,
        answers: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """`answers`: by a connection's first bytes, what it is answered here, and then closed."""
        # Assign another list to add servers or take them away. One that is there twice has two
        # turns; one that is gone keeps the connections that it has.
        self.servers = list(servers)
        self.connections: Counter[str] = Counter()
        self._choose, self._answers, self._turns = choose, answers or {}, count()
        self._stop = asyncio.Event()
        listening: Future[tuple[asyncio.AbstractEventLoop, int]] = Future()
        self._thread = threading.Thread(target=asyncio.run, args=[self._run(listening)])
        self._thread.daemon = True
        self._thread.start()
        self._loop, port = listening.result()
        self.url = f"http://{LOOPBACK}:{port}"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _run(self, listening: Future[tuple[asyncio.AbstractEventLoop, int]]) -> None:
        server = await asyncio.start_server(self._serve, LOOPBACK, 0, backlog=1024)
        port = server.sockets[0].getsockname()[1]
        listening.set_result((asyncio.get_running_loop(), port))
        await self._stop.wait()
        server.close()  # `asyncio.run` then cancels the connections

    def _in_order(self) -> list[str]:
        """The servers as they are tried: one that refuses the connection is passed over."""
        turn = next(self._turns) % max(len(self.servers), 1)
        in_turn = self.servers[turn:] + self.servers[:turn]
        least_first = self._choose == LEAST_CONNECTIONS
        return sorted(in_turn, key=self.connections.__getitem__) if least_first else in_turn

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # the task of a connection has nobody to tell what ended it
        with suppress(OSError, asyncio.CancelledError), closing(writer):
            first = await reader.read(READ_BYTES) if self._answers else b""
            answers = (reply for start, reply in self._answers.items() if first.startswith(start))
            writer.write(answer := next(answers, b""))
            for url in [] if answer else self._in_order():
                where = Address.parse(url)
                self.connections[url] += 1  # before the first await: the next one must see it
                try:
                    with suppress(ConnectionRefusedError):
                        back, forth = await asyncio.open_connection(where.host, where.port)
                        with closing(forth):
                            forth.write(first)
                            await asyncio.gather(_pump(reader, forth), _pump(back, writer))
                        return
                finally:
                    self.connections[url] -= 1


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Every byte of one direction passes here."""
    with suppress(OSError):
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
