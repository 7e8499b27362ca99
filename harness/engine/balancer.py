"""A TCP balancer: passes each connection, not each request, to one of several servers."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import Future
from contextlib import closing, suppress
from itertools import count
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Answers = Mapping[bytes, bytes]


class Balancer:
    """Chooses the one with the fewest connections, or takes them `in_turn`, in a thread of its own.

    Another list may be assigned to `servers` at any time; one that is gone keeps its connections.
    """

    def __init__(
        self, servers: Iterable[str], *, in_turn: bool = False, answers: Answers | None = None
    ) -> None:
        """`answers`: by their first bytes, what connections are answered here, and then closed."""
        self.servers = list(servers)
        self.connections: Counter[str] = Counter()
        self._in_turn, self._answers, self._turns = in_turn, answers or {}, count()
        self._stop = asyncio.Event()
        listening: Future[int] = Future()
        run = self._run(listening)
        self._thread = threading.Thread(target=asyncio.run, args=[run], daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{listening.result()}"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _run(self, listening: Future[int]) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        listening.set_result(server.sockets[0].getsockname()[1])
        await self._stop.wait()
        server.close()  # `asyncio.run` then cancels the connections

    def _order(self) -> list[str]:
        """The servers as they are tried: one that refuses the connection is passed over."""
        turn = next(self._turns) % max(len(self.servers), 1)
        servers = self.servers[turn:] + self.servers[:turn]
        return servers if self._in_turn else sorted(servers, key=self.connections.__getitem__)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # the task of a connection has nobody to tell what ended it
        with suppress(OSError, asyncio.CancelledError), closing(writer):
            first = await reader.read(65_536) if self._answers else b""
            answers = (reply for start, reply in self._answers.items() if first.startswith(start))
            writer.write(answer := next(answers, b""))
            for url in [] if answer else self._order():
                where = urlsplit(url)
                self.connections[url] += 1  # before the first await: the next one must see it
                try:
                    with suppress(ConnectionRefusedError):
                        back, forth = await asyncio.open_connection(where.hostname, where.port)
                        with closing(forth):
                            forth.write(first)
                            await asyncio.gather(_pump(reader, forth), _pump(back, writer))
                        return
                finally:
                    self.connections[url] -= 1


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Every byte of one direction passes here."""
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
