"""A raw client of the embedded engine: bytes out as they are given, responses as they come."""

from __future__ import annotations

import json
import socket
from typing import Any, Self

import httptools

from harness.engine.config import EngineConfig
from harness.units import SECOND

# steps of about 1 ms: an empty step costs 2 ms, the weights of 0.5 B parameters 0.3 ms, halved
QUICK = EngineConfig(model="qwen2.5-0.5b", gpu="h200", jitter=0.0, time_scale=0.5)
MODEL = QUICK.model
REAL_NS = 1_600_000_000 * SECOND  # any CLOCK_REALTIME of today is past it


def request(
    path: str, body: object = None, *, method: str = "POST", headers: dict[str, str] | None = None
) -> bytes:
    """One request's bytes; `body` is JSON, or bytes as they are."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: x", f"content-length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def events_of(body: bytes) -> list[Any]:
    """Data of a stream's events: JSON, or the word [DONE]."""
    blocks = body.decode().split("\n\n")
    assert blocks.pop() == ""
    data = [block.removeprefix("data: ") for block in blocks]
    return [word if word == "[DONE]" else json.loads(word) for word in data]


class Answer:
    """One whole response."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Data of the stream's events: JSON, or the word [DONE]."""
        return events_of(self.body)


class Connection:
    """One connection; use it as a context manager."""

    def __init__(self, url: str) -> None:
        self.sock = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._parser = httptools.HttpResponseParser(self)
        self._current = Answer()
        self._whole: list[Answer] = []

    def ask(self, *arguments: Any, **options: Any) -> Answer:
        """Send a request and read its response."""
        self.sock.sendall(request(*arguments, **options))
        return self.answer()

    def answer(self) -> Answer:
        """The next response. Raises EOFError when there is none."""
        while not self._whole:
            data = self.sock.recv(65_536)
            if not data:
                raise EOFError
            self._parser.feed_data(data)
        return self._whole.pop(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    # called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._current.headers[name.decode().lower()] = value.decode()

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._current.body += data

    def on_message_complete(self) -> None:
        """A response is whole; 100 Continue is none."""
        self._current.status = self._parser.get_status_code()
        if self._current.status >= 200:
            self._whole.append(self._current)
        self._current = Answer()


def ask(url: str, *arguments: Any, **options: Any) -> Answer:
    """One request on a connection of its own."""
    with Connection(url) as connection:
        return connection.ask(*arguments, **options)


def metrics(url: str) -> dict[str, float]:
    """GET /metrics: series without the labels that all have."""
    text = ask(url, "/metrics", method="GET").body.decode()
    rows = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    common = f'engine="0",model_name="{MODEL}"'
    return {name.replace(common, "").replace("{}", ""): float(value) for name, _, value in rows}
