"""A server on raw sockets whose models go wrong in ways that clients have reported.

counts-at-end  refuses each field but OpenAI's oldest, as Mistral's API does; heartbeats without
data, broken text, three tokens an event, 24 whatever was asked for, counted in
the last event alone, unasked; [DONE] without its empty line
sheds          closes each third connection as the request has come, without an answer
fails          in turn: 400 at once with a message of 5 kB; {"detail": ...} amid the answer, then
[DONE]; an answer that is given up (finish_reason abort)
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from wire_examples import chunk, delta, event

if TYPE_CHECKING:
    from collections.abc import Iterator

GAP_S: Final = 0.003
CAME: Final = 24  # tokens of counts-at-end
HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
LAST: Final = b"0\r\n\r\n"
DONE: Final = event(b"[DONE]")
MODELS: Final = ("counts-at-end", "sheds", "fails")
FIELDS: Final = {"model", "messages", "prompt", "stream", "max_tokens", "temperature"}
TOKEN: Final = event(delta(content="a"))
BEAT: Final = b"data:\n\n"
BROKEN: Final = (TOKEN.replace(b'"a"', b'"\\ud83d"'), TOKEN.replace(b'"a"', b'"\xff\xf0\x9f"'))


def good_events(tokens: int) -> list[bytes]:
    """One token an event, with the running count."""
    counted = [event(delta(content="a", usage=n)) for n in range(1, tokens + 1)]
    return [*counted, event(delta(content="", finish="length")), DONE]


def counted_at_end() -> list[bytes]:
    """Eight events with tokens."""
    usage = {"prompt_tokens": 16, "completion_tokens": CAME}
    odd = [BEAT, *BROKEN, BEAT, *[TOKEN] * (CAME // 3 - len(BROKEN))]
    return [*odd, event({"choices": [], "usage": usage}), DONE.rstrip()]


def failing_events(turn: int) -> list[bytes]:
    """Half an answer."""
    end = event({"detail": "overloaded"}) if turn % 2 else event(delta(content="", finish="abort"))
    return [*[TOKEN] * 4, end, DONE]


class StreamServer:
    """It counts what it did, by model: `asked`, `refused`, `shed`."""

    def __init__(self) -> None:
        """Listen on a free port."""
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.did: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Nobody listens any more; open connections end with their clients."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                sock = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError), sock, sock.makefile("rb") as reader:
            while words := reader.readline().split():
                length = 0
                while line := reader.readline().strip():
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                body = json.loads(reader.read(length) or b"{}")
                if not self._answer(sock, words[1].decode(), body):
                    return

    def _answer(self, sock: socket.socket, path: str, body: dict[str, Any]) -> bool:
        """Whether the connection is kept."""
        if path == "/v1/models":
            sock.sendall(whole({"data": [{"id": name, "max_model_len": 4096} for name in MODELS]}))
        elif not path.endswith("/completions") or not body.get("stream"):
            sock.sendall(whole({}, 404))
        else:
            return self._complete(sock, body)
        return True

    def _complete(self, sock: socket.socket, body: dict[str, Any]) -> bool:
        model = str(body["model"])
        place = self._count(model, "asked")
        events = good_events(int(body["max_tokens"]))  # of the probe, too
        if model == "counts-at-end":
            if set(body) - FIELDS:
                self._count(model, "refused")
                sock.sendall(whole({"detail": "extra_forbidden"}, 422))
                return True
            events = counted_at_end()
        elif model == "sheds" and place % 3 == 0:
            self._count(model, "shed")
            return False
        elif model == "fails" and place > 1:
            if place % 3 == 0:
                sock.sendall(whole({"error": {"message": "you said\n" * 600}}, 400))
                return True
            events = failing_events(place)
        self._stream(sock, events)
        return True

    def _stream(self, sock: socket.socket, events: list[bytes]) -> None:
        *most, last = events
        sock.sendall(HEAD)
        for one in most:
            time.sleep(GAP_S)
            sock.sendall(chunk(one))
        sock.sendall(chunk(last) + LAST)

    def _count(self, model: str, what: str) -> int:
        with self._lock:
            self.did[model, what] += 1
            return self.did[model, what]


def whole(body: object, status: int = 200) -> bytes:
    """A response in one piece."""
    data = json.dumps(body).encode()
    lines = f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    return lines.encode() + b"\r\n\r\n" + data


@contextlib.contextmanager
def stream_server() -> Iterator[StreamServer]:
    """A server for the length of a `with`."""
    server = StreamServer()
    try:
        yield server
    finally:
        server.close()
