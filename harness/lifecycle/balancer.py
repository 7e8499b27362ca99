"""A TCP balancer: passes each connection, not each request, to one of several servers.

`python -m harness.lifecycle.balancer URL...` is a process of its own that says its URL, and reads
faults of the way to a server, [URL, fields of Fault] in a line, until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from typing import Final
from urllib.parse import urlsplit

from harness.lifecycle.child_server import ChildServer

FAULT_POLL_S: Final = 0.02  # how late the end of a cut is noticed


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to the bytes between the balancer and a server, both ways."""

    cut: bool = False  # none passes; they pass when the cut is over
    delay_s: float = 0.0
    bytes_per_s: float = 0.0  # of each connection; 0: no limit


WELL: Final = Fault()


class Balancer:
    """Chooses the server with the fewest connections, and the next one if that refuses it."""

    def __init__(self, servers: Iterable[str]) -> None:
        self.servers = list(servers)
        self.connections: Counter[str] = Counter()
        self.faults: defaultdict[str, Fault] = defaultdict(lambda: WELL)
        self._turns = 0
        # asyncio itself refers to tasks weakly, and two closed ends refer to each other alone
        self.serving: set[asyncio.Task[None] | None] = set()

    def in_turn(self) -> list[str]:
        """The servers, beginning with another one each time."""
        turn = self._turns % max(len(self.servers), 1)
        self._turns += 1
        return self.servers[turn:] + self.servers[:turn]

    def order(self) -> list[str]:
        """In which they are tried."""
        # Sorting is stable: servers with equally many connections take turns.
        return sorted(self.in_turn(), key=self.connections.__getitem__)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        task = asyncio.current_task()
        self.serving.add(task)
        try:
            # the task of a connection has nobody to tell what ended it
            with suppress(OSError, asyncio.CancelledError), closing(writer):
                await self._serve(reader, writer)
        finally:
            self.serving.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """By the first server that accepts the connection."""
        for url in self.order():
            self.connections[url] += 1  # before the first await: the next one must see it
            try:
                with suppress(ConnectionRefusedError):
                    await self._connect(url, reader, writer)
                    return
            finally:
                self.connections[url] -= 1

    async def _connect(
        self, url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """To a server, until both sides have ended. Raises ConnectionRefusedError."""
        address = urlsplit(url)
        back, forth = await asyncio.open_connection(address.hostname, address.port)
        with closing(forth):
            requests = self._pump(reader, forth, url)
            answers = self._pump(back, writer, url)
            await asyncio.gather(requests, answers)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: str
    ) -> None:
        """Every byte of one direction passes here."""
        with suppress(OSError):
            while data := await reader.read(65_536):
                fault = self.faults[url]
                if fault != WELL:
                    await asyncio.sleep(fault.delay_s)
                    if fault.bytes_per_s:
                        await asyncio.sleep(len(data) / fault.bytes_per_s)
                    # Looked up again: it changes while this waits.
                    while self.faults[url].cut:  # noqa: ASYNC110 - an event would lie in another loop
                        await asyncio.sleep(FAULT_POLL_S)
                writer.write(data)
                await writer.drain()
            # Half closed: an answer may still come the other way.
            writer.write_eof()


class BalancerProcess(ChildServer):
    """A balancer in a process of its own, which ends with this one."""

    def __init__(self, servers: Iterable[str]) -> None:
        super().__init__("harness.lifecycle.balancer", servers)

    def set_fault(self, server: str, fault: Fault) -> None:
        """From now on, for connections that exist too."""
        assert self._process.stdin is not None  # noqa: S101 - asked for above
        line = json.dumps([server, asdict(fault)])
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


async def main(servers: list[str]) -> None:
    """Run in the child, until the parent closes the pipe."""
    balancer = Balancer(servers)
    listening = await asyncio.start_server(balancer.serve, "127.0.0.1", 0, backlog=1024)
    _, port = listening.sockets[0].getsockname()
    sys.stdout.write(f"http://127.0.0.1:{port}\n")
    sys.stdout.flush()
    while line := await asyncio.to_thread(sys.stdin.readline):
        server, fault = json.loads(line)
        balancer.faults[server] = Fault(**fault)
    listening.close()  # `asyncio.run` then cancels the connections


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
