"""Small servers on loopback that answer wrongly in one chosen way, on plain sockets."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

Reply = Callable[[str, dict[str, Any]], bytes]  # (path, JSON body) -> the bytes to send back


class LittleServer:
    """Answers each request with `reply(path, body)` and closes; remembers what it was asked."""

    def __init__(self, reply: Reply, tls: ssl.SSLContext | None = None) -> None:
        """Listen on a free port and answer in a thread."""
        self.reply = reply
        self.tls = tls
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.keys: list[str] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._accept)
        self.thread.start()

    @property
    def paths(self) -> list[str]:
        """The paths asked for, in order."""
        return [path for path, _ in self.asked]

    def close(self) -> None:
        """Stop listening and wait for the thread."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:
                return
            with contextlib.suppress(OSError, ssl.SSLError), connection:
                connection.settimeout(5)
                if self.tls is None:
                    self._answer(connection)
                else:
                    with self.tls.wrap_socket(connection, server_side=True) as secure:
                        self._answer(secure)

    def _answer(self, connection: socket.socket) -> None:
        if self.tls is None and not connection.recv(1, socket.MSG_PEEK).isalpha():
            connection.sendall(http(b"", 400))  # what vLLM's server does with a TLS handshake
            return
        with connection.makefile("rb") as reader:
            words = reader.readline().split()
            length = 0
            while line := reader.readline().strip():
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
                if name.lower() == b"authorization":
                    self.keys.append(value.strip().decode())
            body = json.loads(reader.read(length) or b"{}")
        path = words[1].decode() if len(words) > 1 else ""
        self.asked.append((path, body))
        connection.sendall(self.reply(path, body))


@contextlib.contextmanager
def little_server(reply: Reply, tls: ssl.SSLContext | None = None) -> Iterator[LittleServer]:
    """A server for the length of a `with`."""
    server = LittleServer(reply, tls)
    try:
        yield server
    finally:
        server.close()


def http(body: object, status: int = 200, kind: str = "application/json", **headers: str) -> bytes:
    """A whole response; `body` is sent as it is when it is bytes, else as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"Content-Type": kind, "Content-Length": len(data), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} -\r\n{head}\r\n".encode() + data


def sse(*events: object, end: bytes = b"data: [DONE]\n\n") -> bytes:
    """A stream of events, in one response."""
    lines = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return http(lines + end, kind="text/event-stream; charset=utf-8")


def token(text: str = "a", usage: int | None = None) -> dict[str, Any]:
    """A chat chunk with a token; `usage` as `continuous_usage_stats` writes it."""
    chunk: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": text}}]}
    return chunk if usage is None else chunk | {"usage": {"completion_tokens": usage}}


ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def models(*names: str, **extra: object) -> bytes:
    """What /v1/models answers."""
    return http({"object": "list", "data": [{"id": name, **extra} for name in names]})


METRICS = b"""\
process_start_time_seconds 1.7e+09
process_cpu_seconds_total 1.5
vllm:num_requests_running 0
vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1
"""
KV_CACHE = {
    "engines": 1,
    "block_size": 16,
    "kv_blocks": 100,
    "kv_tokens": 1600,
    "cache_config": {"block_size": "16", "num_gpu_blocks": "100"},
}


def vllm_like(**instead: bytes) -> Reply:
    """A well-behaved server, apart from the paths given: `chat`, `models`, `metrics`, ..."""
    answers = {
        "models": models("m", max_model_len=4096),
        "chat/completions": sse(ROLE, token(usage=1), token(usage=2), USAGE),
        "completions": sse({"choices": [{"text": "a"}]}, USAGE),
        "version": http({"version": "0.32.0"}),
        "metrics": http(METRICS, kind="text/plain"),
        "tokenize": http({"count": 3}),
    } | instead

    def reply(path: str, _body: dict[str, Any]) -> bytes:
        return answers.get(path.removeprefix("/").removeprefix("v1/"), http({}, status=404))

    return reply
