"""A balancer in a thread of the test, which may take servers in turn and answer some requests."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from harness.lifecycle.balancer import Balancer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Gateway(Balancer):
    """Another list may be assigned to `servers`; one that is gone keeps its connections."""

    def __init__(
        self,
        servers: Iterable[str],
        *,
        in_turn: bool = False,
        answers: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """`answers`: by their first bytes, what connections are answered here, and then closed."""
        super().__init__(servers)
        if in_turn:
            self.order = self.in_turn  # type: ignore[method-assign]
        self.answers = answers or {}
        self._stop, listening = asyncio.Event(), Future[int]()
        self._thread = threading.Thread(
            target=asyncio.run, args=[self._run(listening)], daemon=True
        )
        self._thread.start()
        self.url = f"http://127.0.0.1:{listening.result()}"

    def close(self) -> None:
        """Cut what is connected."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _run(self, listening: Future[int]) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0, backlog=1024)
        listening.set_result(server.sockets[0].getsockname()[1])
        await self._stop.wait()
        server.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As the balancer, where no answer is known."""
        if self.answers:
            reader.feed_data(first := await reader.read(65_536))
            for start, reply in self.answers.items():
                if first.startswith(start):
                    writer.write(reply)
                    writer.close()
                    return
        await super().serve(reader, writer)
