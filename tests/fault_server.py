"""Servers on loopback that stream well at first and then go wrong in one chosen way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Fails = Callable[[int, int], bool]  # (place among the streams asked for, streams under way)

FIRST_S, GAP_S, FAULTY_S = 0.010, 0.003, 0.02
SSE: Final = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"


def whole(body: object, status: int = 200, kind: str = "application/json") -> bytes:
    """A response in one piece."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} -\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def chunk(data: bytes) -> bytes:
    """One chunk of a stream's body that holds one event."""
    event = b"data: " + data + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


ANSWERS: Final[dict[str, bytes]] = {  # faults that are a whole answer
    "429": whole({"error": {"message": "too many requests"}}, 429),
    "503": whole({"error": {"message": "engine is overloaded"}}, 503),
    "html": whole(b"<html><body>Bad gateway</body></html>", kind="text/html"),
    "closes": b"",
}


@dataclass(slots=True)
class FaultServer:
    """`fault` is what happens to a stream for which `fails`: a key of ANSWERS, or

    breaks     the stream ends in its middle
    cut        the connection does
    stalls     no token comes any more, and nothing ends
    silent     as `stalls`, without a first token
    malformed  an event of the stream is no JSON
    dies       nobody listens any more, and every open stream is cut
    """  # noqa: D400 - a table follows

    fault: str
    fails: Fails
    port: int = 0
    streams: int = 0  # asked for, those of the probe included
    running: int = 0
    listener: asyncio.Server | None = None

    async def serve(self, reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        """One connection, kept alive."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
                length = next((int(f[15:]) for f in head if f.startswith("content-length:")), 0)
                body = json.loads(await reader.readexactly(length) or b"{}")
                path = head[0].split(" ")[1]
                if path == "/v1/models":
                    out.write(whole({"data": [{"id": "faulty", "max_model_len": 32768}]}))
                elif path.endswith("/completions") and body.get("stream"):
                    self.streams += 1
                    self.running += 1
                    try:
                        if not await self.stream(int(body["max_tokens"]), out):
                            return
                    finally:
                        self.running -= 1
                else:
                    out.write(whole({}, 404))
                await out.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            out.close()

    async def stream(self, tokens: int, out: asyncio.StreamWriter) -> bool:
        """The events of one completion; whether the connection is kept."""
        faulty = self.fails(self.streams - 1, self.running)
        if faulty and self.fault == "dies":
            self.die()
        if faulty and self.fault in ANSWERS:
            await asyncio.sleep(FAULTY_S)
            out.write(ANSWERS[self.fault])
            return bool(ANSWERS[self.fault])
        out.write(b"HTTP/1.1 200 OK\r\n" + SSE + b"\r\n")
        for n in range(1, tokens + 1):
            await asyncio.sleep(FIRST_S if n == 1 else GAP_S)
            if faulty and n == 1 + (tokens // 2) * (self.fault != "silent"):
                if self.fault == "malformed":
                    out.write(chunk(b'{"choices": [{"index": 0, "del'))
                elif self.fault in ("stalls", "silent"):
                    await out.drain()
                    await asyncio.sleep(3600)
                elif self.fault == "breaks":
                    out.write(b"0\r\n\r\n")
                    return True
                else:
                    return False
            part = {"index": 0, "delta": {"content": " a"}}
            usage = {"prompt_tokens": 9, "completion_tokens": n, "total_tokens": 9 + n}
            out.write(chunk(json.dumps({"choices": [part], "usage": usage}).encode()))
            await out.drain()
        out.write(chunk(b"[DONE]") + b"0\r\n\r\n")
        return True

    def die(self) -> None:
        """Stop listening and drop every connection."""
        if self.listener is not None:
            self.listener.close()
            for task in asyncio.all_tasks():
                if task.get_name() == f"connection of {self.port}":
                    task.cancel()

    async def start(self) -> None:
        """Listen on a free port."""

        async def connected(reader: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            task.set_name(f"connection of {self.port}")
            with contextlib.suppress(asyncio.CancelledError):
                await self.serve(reader, out)

        self.listener = await asyncio.start_server(connected, "127.0.0.1", 0)
        self.port = self.listener.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        """For the command line."""
        return f"http://127.0.0.1:{self.port}"


class FaultServers:
    """Any number of them, in one thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.servers: list[FaultServer] = []

    def __call__(self, fault: str, fails: Fails) -> FaultServer:
        server = FaultServer(fault, fails)
        asyncio.run_coroutine_threadsafe(server.start(), self.loop).result()
        self.servers.append(server)
        return server

    async def _stop(self) -> None:
        for server in self.servers:
            server.die()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    def close(self) -> None:
        """Stop them all."""
        asyncio.run_coroutine_threadsafe(self._stop(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@contextlib.contextmanager
def fault_servers() -> Iterator[FaultServers]:
    """Servers for the length of a `with`."""
    servers = FaultServers()
    try:
        yield servers
    finally:
        servers.close()


def after(good: int) -> Fails:
    """All but the first streams."""
    return lambda place, _: place >= good


def each(nth: int, first: int = 20) -> Fails:
    """Each so manieth, once `first` went well."""
    return lambda place, _: place >= first and place % nth == 0


def above(users: int) -> Fails:
    """Those that come while more are under way."""
    return lambda _, running: running > users


def never(_place: int, _running: int) -> bool:
    """None."""
    return False
