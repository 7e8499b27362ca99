"""A proxy before servers that prefill and servers that decode: one request to each, in turn.

    python -m harness.lifecycle.prefill_decode prefill=URL... decode=URL... port=N [folder=DIR]

is a process of its own that says its URL and ends with its standard input. A completion goes to the
prefilling server with the fewest requests, for one token; what it answers as `kv_transfer_params`
goes with the request to the decoding server with the fewest, whose stream is passed on as it comes.
All else goes to a decoding server. vLLM's own proxies for its KV connectors do the same.

Servers that hand over KV caches as files in a folder never remove them: here they are, when no
request can still want them.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httptools
import orjson

from harness.engine.client_socket import Request, RequestParser
from harness.lifecycle.child_server import ChildServer
from harness.wire.http import Response

PREFILL: Final = "prefill"
DECODE: Final = "decode"
FOLDER: Final = "folder"
PORT: Final = "port"
KEPT_S: Final = 30.0  # a KV cache in the folder, from when it is complete
SWEEP_S: Final = 2.0
READ_BYTES: Final = 65_536
COMPLETIONS: Final = ("/v1/completions", "/v1/chat/completions")
OF_A_HOP: Final = ("host", "connection", "content-length", "transfer-encoding", "expect")
# What vLLM's KV connectors are asked with; the prefilling server fills in the rest.
ASK_TO_KEEP: Final = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
GONE: Final = b'{"error": {"message": "no server behind the proxy answers", "code": 503}}'


class Refused(Exception):  # noqa: N818 - an answer, not an error of ours
    """A server's answer that ends the request; the argument has its bytes."""


def prefill_body(body: dict[str, Any]) -> dict[str, Any]:
    """The same prompt, for one token that nobody reads."""
    asked = {name: value for name, value in body.items() if name != "stream_options"}
    asked |= {"stream": False, "max_tokens": 1, "kv_transfer_params": ASK_TO_KEEP}
    for name in ("max_completion_tokens", "min_tokens"):
        if name in asked:
            asked[name] = 1
    return asked


def decode_body(body: dict[str, Any], prefilled: bytes) -> dict[str, Any]:
    """The request, with where its prompt's KV cache is, if the prefilling server says so."""
    told = orjson.loads(prefilled).get("kv_transfer_params")
    return {**body, "kv_transfer_params": told} if told else body


@dataclass(slots=True)
class Pool:
    """Servers of one role, and their requests."""

    servers: Sequence[str]
    in_flight: Counter[str] = field(default_factory=Counter)
    _turn: int = 0

    def least_busy(self) -> str:
        """The server with the fewest requests; of several, another one each time."""
        self._turn += 1
        turn = self._turn % len(self.servers)
        in_turn = [*self.servers[turn:], *self.servers[:turn]]
        return min(in_turn, key=self.in_flight.__getitem__)


Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Lines:
    """A client's connections to servers, each opened when it is first needed."""

    def __init__(self) -> None:
        self._open: dict[str, Line] = {}

    async def send(self, url: str, request: Request, body: bytes) -> tuple[Line, bytes]:
        """Send a request; the connection, and the first bytes of the answer. Raises OSError."""
        data = _request_bytes(url, request, body)
        if url in self._open:
            with suppress(OSError):
                return await self._exchange(url, data)
            self.close(url)  # the server had closed it: nothing was answered
        address = urlsplit(url)
        self._open[url] = await asyncio.open_connection(address.hostname, address.port)
        return await self._exchange(url, data)

    async def _exchange(self, url: str, data: bytes) -> tuple[Line, bytes]:
        reader, writer = self._open[url]
        writer.write(data)
        await writer.drain()
        first = await reader.read(READ_BYTES)
        if not first:
            raise ConnectionResetError
        return (reader, writer), first

    def close(self, url: str) -> None:
        _, writer = self._open.pop(url)
        writer.close()

    def close_all(self) -> None:
        for url in list(self._open):
            self.close(url)


def _request_bytes(url: str, request: Request, body: bytes) -> bytes:
    headers = {name: text for name, text in request.headers.items() if name not in OF_A_HOP}
    headers |= {"host": urlsplit(url).netloc, "content-length": str(len(body))}
    lines = [f"{request.method} {request.path} HTTP/1.1"]
    lines += [f"{name}: {text}" for name, text in headers.items()]
    head = "\r\n".join([*lines, "", ""])
    return head.encode("latin-1") + body


class Proxy:
    """Both pools, and what clients ask of them."""

    def __init__(self, prefill: Sequence[str], decode: Sequence[str]) -> None:
        self.prefill = Pool(prefill)
        self.decode = Pool(decode)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection, to its end."""
        lines = Lines()
        asked: list[Request] = []
        parser = RequestParser(asked.append, lambda: writer.write(b"HTTP/1.1 100 Continue\r\n\r\n"))
        # The task of a connection has nobody to tell what ended it.
        ends = (OSError, httptools.HttpParserError, asyncio.CancelledError)
        with suppress(*ends), closing(writer):
            try:
                while data := await reader.read(READ_BYTES):
                    parser.feed(data, 0)
                    while asked:
                        await self._answer(asked.pop(0), lines, writer)
            finally:
                lines.close_all()

    async def _answer(self, request: Request, lines: Lines, writer: asyncio.StreamWriter) -> None:
        try:
            body = request.body
            if request.method == "POST" and request.path in COMPLETIONS:
                body = await self._prefilled(request, lines)
            await self._pass_on(request, body, lines, writer)
        except Refused as refused:
            writer.write(refused.args[0])
        await writer.drain()

    async def _prefilled(self, request: Request, lines: Lines) -> bytes:
        """The body for the decoding server. Raises Refused."""
        try:
            body = orjson.loads(request.body)
        except orjson.JSONDecodeError:
            body = None
        if not isinstance(body, dict):
            return request.body  # the decoding server says what is wrong with it
        url = self.prefill.least_busy()
        self.prefill.in_flight[url] += 1
        try:
            asked = orjson.dumps(prefill_body(body))
            answer, raw, content = await _whole_answer(lines, url, request, asked)
        finally:
            self.prefill.in_flight[url] -= 1
        if answer.status != HTTPStatus.OK:
            raise Refused(raw)
        return orjson.dumps(decode_body(body, content))

    async def _pass_on(
        self, request: Request, body: bytes, lines: Lines, writer: asyncio.StreamWriter
    ) -> None:
        """From a decoding server, byte by byte. Raises Refused, and OSError if the client left."""
        url = self.decode.least_busy()
        self.decode.in_flight[url] += 1
        try:
            (reader, _), data = await _sent(lines, url, request, body)
            answer = Response()
            while data:
                answer.feed(data)
                writer.write(data)
                await writer.drain()
                if answer.complete or answer.problem:
                    break
                data = await reader.read(READ_BYTES)
            if not answer.complete:
                raise ConnectionResetError  # the client must not take half an answer for whole
            if not answer.keep_alive:
                lines.close(url)
            answer.release()
        finally:
            self.decode.in_flight[url] -= 1


async def _sent(lines: Lines, url: str, request: Request, body: bytes) -> tuple[Line, bytes]:
    """Raises Refused where the server cannot be reached."""
    try:
        return await lines.send(url, request, body)
    except OSError:
        head = f"HTTP/1.1 503 Service Unavailable\r\ncontent-length: {len(GONE)}\r\n\r\n"
        raise Refused(head.encode() + GONE) from None


async def _whole_answer(
    lines: Lines, url: str, request: Request, body: bytes
) -> tuple[Response, bytes, bytes]:
    """The answer, its bytes, and those of its body. Raises Refused, OSError."""
    (reader, _), data = await _sent(lines, url, request, body)
    answer = Response()
    raw = b""
    content = b""
    while data:
        raw += data
        content += answer.feed(data)
        if answer.complete or answer.problem:
            break
        data = await reader.read(READ_BYTES)
    if not answer.complete:
        raise ConnectionResetError
    if not answer.keep_alive:
        lines.close(url)
    answer.release()
    return answer, raw, content


class ProxyProcess(ChildServer):
    """A proxy in a process of its own, which ends with this one."""

    def __init__(
        self,
        prefill: Iterable[str],
        decode: Iterable[str],
        folder: Path | None = None,
        port: int = 0,
    ) -> None:
        """`folder`: where servers leave KV caches for each other; it goes at the end.

        `port` 0: any.
        """
        words = [f"{PREFILL}={url}" for url in prefill] + [f"{DECODE}={url}" for url in decode]
        words.append(f"{PORT}={port}")
        if folder is not None:
            words.append(f"{FOLDER}={folder}")
        self._folder = folder
        super().__init__("harness.lifecycle.prefill_decode", words)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def remove_old(folder: Path, now_s: float) -> None:
    """Remove the KV caches in a folder that are older than KEPT_S."""
    for cache in folder.glob("*/"):
        with suppress(OSError):  # gone meanwhile
            if now_s - cache.stat().st_mtime > KEPT_S:
                shutil.rmtree(cache, ignore_errors=True)


async def sweep(folder: Path) -> None:
    """Remove what is old again and again."""
    while True:
        await asyncio.to_thread(remove_old, folder, time.time())
        await asyncio.sleep(SWEEP_S)


def values_of(name: str, words: Iterable[str]) -> list[str]:
    """The values of `name=VALUE` among the words of the command line."""
    start = f"{name}="
    return [word.removeprefix(start) for word in words if word.startswith(start)]


async def main(words: Sequence[str]) -> None:
    """Run in the child, until the parent closes the pipe."""
    proxy = Proxy(values_of(PREFILL, words), values_of(DECODE, words))
    sweeping = [asyncio.create_task(sweep(Path(name))) for name in values_of(FOLDER, words)]
    (wanted,) = values_of(PORT, words)
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", int(wanted), backlog=1024)
    _, port = listening.sockets[0].getsockname()
    sys.stdout.write(f"http://127.0.0.1:{port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    for task in sweeping:
        task.cancel()
    listening.close()  # `asyncio.run` then cancels the connections


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
