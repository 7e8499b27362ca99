"""A TCP balancer: passes each connection, not each request, to one of several servers.

`python -m harness.engine.balancer URL...` is a process of its own that says its port, and reads
faults of the way to a server, [URL, fields of Fault] in a line, until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from itertools import count
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Answers = Mapping[bytes, bytes]

FAULT_POLL_S: Final = 0.02  # how late the end of a cut is noticed


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to the bytes between the balancer and a server, both ways."""

    cut: bool = False  # none passes; they pass when the cut is over
    delay_s: float = 0.0
    bytes_per_s: float = 0.0  # of each connection; 0: no limit


WELL: Final = Fault()


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
        self.faults: defaultdict[str, Fault] = defaultdict(lambda: WELL)
        self._in_turn, self._answers, self._turns = in_turn, answers or {}, count()
        self._stop = asyncio.Event()
        # asyncio itself refers to tasks weakly, and two closed ends refer to each other alone
        self._serving: set[asyncio.Task[None] | None] = set()
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
        self._serving.add(task := asyncio.current_task())
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
                            await asyncio.gather(
                                self._pump(reader, forth, url), self._pump(back, writer, url)
                            )
                        return
                finally:
                    self.connections[url] -= 1
        self._serving.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: str
    ) -> None:
        """Every byte of one direction passes here."""
        with suppress(OSError):
            while data := await reader.read(65_536):
                if (fault := self.faults[url]) is not WELL:
                    await asyncio.sleep(fault.delay_s)
                    if fault.bytes_per_s:
                        await asyncio.sleep(len(data) / fault.bytes_per_s)
                    while self.faults[url].cut:  # noqa: ASYNC110 - an event would lie in another loop
                        await asyncio.sleep(FAULT_POLL_S)
                writer.write(data)
                await writer.drain()
            writer.write_eof()


class BalancerProcess:
    """A balancer in a process of its own, which ends with this one."""

    def __init__(self, servers: Iterable[str]) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "harness.engine.balancer", *servers],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None  # noqa: S101 - asked for above
        self.url = self._process.stdout.readline().strip()

    def set_fault(self, server: str, fault: Fault) -> None:
        """From now on, for connections that exist too."""
        assert self._process.stdin is not None  # noqa: S101 - asked for above
        self._process.stdin.write(json.dumps([server, asdict(fault)]) + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input


def main(servers: list[str]) -> None:
    """Run in the child, until the parent closes the pipe."""
    balancer = Balancer(servers)
    sys.stdout.write(f"{balancer.url}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        server, fault = json.loads(line)
        balancer.faults[server] = Fault(**fault) if any(fault.values()) else WELL
    balancer.close()


if __name__ == "__main__":
    main(sys.argv[1:])
