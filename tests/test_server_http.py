"""The embedded engine's HTTP: any cut, keep-alive, pipelining, refusals, clients that leave."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from engine_client import MODEL, QUICK, Connection, ask, metrics, request

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.engine.server import ServingOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
SHORT = {"model": MODEL, "prompt": "a b", "max_tokens": 2}
STREAM = {**SHORT, "stream": True}
LONG = {**STREAM, "max_tokens": 8000}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """An engine."""
    with start_engine(QUICK) as engine:
        yield engine.url


def wait_for(holds: Callable[[], bool]) -> None:
    """Until it holds; a test that waits for ever says which."""
    for _ in range(1000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("waited 10 s in vain")


@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_request_in_pieces(size: int, url: str) -> None:
    """A request is the same whatever the size of the segments it comes in."""
    data = request(COMPLETIONS, SHORT)
    with Connection(url) as connection:
        for start in range(0, len(data), size):
            connection.sock.sendall(data[start : start + size])
        assert connection.answer().json["usage"]["completion_tokens"] == 2


def test_a_request_at_every_cut(url: str) -> None:
    """A request cut in two anywhere is answered on the same connection, again and again."""
    data = request(COMPLETIONS, {**SHORT, "max_tokens": 1})
    got = []
    with Connection(url) as connection:
        for cut in range(1, len(data)):
            connection.sock.sendall(data[:cut])
            connection.sock.sendall(data[cut:])
            got.append(connection.answer().status)
    assert got == [200] * (len(data) - 1)


def test_pipelined(url: str) -> None:
    """Requests sent at once are answered in order, streams included."""
    asked = [
        (COMPLETIONS, {**STREAM, "max_tokens": 5}),
        (COMPLETIONS, SHORT),
        ("/nope", {}),
        (CHAT, {"messages": [], "max_tokens": 3}),
    ]
    with Connection(url) as connection:
        data = [request(path, body) for path, body in asked]
        connection.sock.sendall(b"".join(data))
        stream, whole, lost, chat = (connection.answer() for _ in asked)
    texts = [e["choices"][0]["text"] for e in stream.events[:-1]]
    assert "".join(texts) == " tok" * 5
    assert whole.json["usage"]["completion_tokens"] == 2
    assert lost.status == 404
    assert chat.json["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("body", [SHORT, STREAM])
def test_connection_close(body: dict[str, Any], url: str) -> None:
    """A client that asks for it is hung up on, after its whole answer."""
    with Connection(url) as connection:
        got = connection.ask(COMPLETIONS, body, headers={"connection": "close"})
        assert got.status == 200
        with pytest.raises(EOFError):
            connection.answer()


H2C = {
    "connection": "Upgrade, HTTP2-Settings",
    "upgrade": "h2c",
    "http2-settings": "AAMAAABkAAQAoAAA",
}
SOCKET = {"connection": "Upgrade", "upgrade": "websocket"}


@pytest.mark.parametrize("path", [COMPLETIONS, "/health"])
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("headers", [H2C, SOCKET, H2C | {"expect": "100-continue"}])
def test_another_protocol_is_ignored(
    headers: dict[str, str], size: int, path: str, url: str
) -> None:
    """A client that would rather speak HTTP/2 is answered in HTTP/1.1, its body read.

    In segments of any size, and whatever follows on the same connection.
    """
    asked = [(path, SHORT if path == COMPLETIONS else None, headers), (COMPLETIONS, STREAM, {})]
    data = b""
    for where, body, more in asked * 2:
        method = "POST" if body else "GET"
        data += request(where, body, method=method, headers=more)
    with Connection(url) as connection:
        for start in range(0, len(data), size):
            connection.sock.sendall(data[start : start + size])
        for _ in asked * 2:
            assert connection.answer().status == 200


def test_another_protocol_in_chunks(url: str) -> None:
    """The body of such a client may come in chunks, as Java's does."""
    body = json.dumps(SHORT).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in H2C.items())
    data = f"POST {COMPLETIONS} HTTP/1.1\r\n{head}transfer-encoding: chunked\r\n\r\n".encode()
    with Connection(url) as connection:
        connection.sock.sendall(data + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert connection.answer().json["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(("method", "status"), [("CONNECT", 405), ("OPTIONS", 405)])
def test_other_methods(method: str, status: int, url: str) -> None:
    """They are refused, and the connection goes on."""
    with Connection(url) as connection:
        assert connection.ask(COMPLETIONS, method=method).status == status
        assert connection.ask(COMPLETIONS, SHORT).status == 200


def test_told_to_go_on(url: str) -> None:
    """The body is sent only after 100 Continue."""
    data = request(COMPLETIONS, SHORT, headers={"expect": "100-continue"})
    head, body = data.split(b"\r\n\r\n")
    with Connection(url) as connection:
        connection.sock.sendall(head + b"\r\n\r\n")
        assert connection.sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sock.sendall(body)
        assert connection.answer().status == 200


def test_nonsense_is_refused(url: str) -> None:
    """What is no HTTP gets a 400 and the connection's end."""
    with Connection(url) as connection:
        connection.sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert connection.answer().status == 400
        with pytest.raises(EOFError):
            connection.answer()


TOO_LONG = (
    "This model's maximum context length is 8192 tokens. However, you requested 8191 output "
    "tokens and your prompt contains 2 input tokens. Please reduce the length of the input "
    "prompt or the number of requested output tokens."
)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (COMPLETIONS, {**SHORT, "model": "x"}, 404, "The model `x` does not exist."),
        (COMPLETIONS, {**SHORT, "max_tokens": 8191}, 400, TOO_LONG),
        (COMPLETIONS, {**SHORT, "max_tokens": 0}, 400, "max_tokens must be at least 1, got 0."),
        (COMPLETIONS, {**SHORT, "max_tokens": True}, 400, "max_tokens must be at least 1, got T"),
        (COMPLETIONS, {**SHORT, "max_tokens": "5"}, 400, "max_tokens must be at least 1, got 5"),
        (COMPLETIONS, {**SHORT, "n": 2}, 400, "only n=1"),
        (COMPLETIONS, {**SHORT, "prompt": ""}, 400, "The prompt is empty"),
        (COMPLETIONS, {**SHORT, "prompt": None}, 400, "Field required: prompt"),
        (COMPLETIONS, {**SHORT, "prompt": [1, "a"]}, 400, "Field required: prompt"),
        (COMPLETIONS, {**SHORT, "stream_options": 3}, 400, "stream_options must be an object"),
        (COMPLETIONS, [], 400, "the body must be a JSON object"),
        (COMPLETIONS, b"{", 400, "JSON decode error"),
        (COMPLETIONS, b"\xff", 400, "JSON decode error"),
        (CHAT, {"max_tokens": 1}, 400, "Field required: messages"),
        (CHAT, {"messages": "hi"}, 400, "Field required: messages"),
        (CHAT, {"messages": ["hi"]}, 400, "Field required: messages"),
        ("/tokenize", {}, 400, "Field required: prompt"),
    ],
)
def test_refused(path: str, body: object, status: int, message: str, url: str) -> None:
    """A bad request has vLLM's error object, and the connection stays open for a good one."""
    with Connection(url) as connection:
        got = connection.ask(path, body)
        assert connection.ask(COMPLETIONS, SHORT).status == 200
    error = got.json["error"]
    kind = {400: "BadRequestError", 404: "NotFoundError"}[status]
    assert got.status == status
    assert error["code"] == status
    assert error["type"] == kind
    assert error["param"] is None
    assert error["message"].startswith(message)


@pytest.mark.parametrize(
    "content", [5, None, "", [], ["x"], [{"type": "text", "text": "hi"}], [{"text": 5}], {"a": 1}]
)
def test_odd_contents(content: object, url: str) -> None:
    """Whatever a message contains, it is counted and answered."""
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
    assert ask(url, CHAT, body).status == 200


@pytest.mark.parametrize(
    ("path", "method", "status", "body"),
    [
        ("/nope", "GET", 404, b'{"detail":"Not Found"}'),
        ("/", "POST", 404, b'{"detail":"Not Found"}'),
        (COMPLETIONS, "GET", 405, b'{"detail":"Method Not Allowed"}'),
        ("/v1/models", "POST", 405, b'{"detail":"Method Not Allowed"}'),
        ("/health", "GET", 200, b""),
        ("/health?x=1", "GET", 200, b""),
    ],
)
def test_paths(path: str, method: str, status: int, body: bytes, url: str) -> None:
    """Unknown paths and wrong methods are refused in the words of vLLM's framework."""
    got = ask(url, path, method=method)
    assert got.status == status
    assert got.body == body


def test_models(url: str) -> None:
    """The one model, its context length and its owner."""
    (model,) = ask(url, "/v1/models", method="GET").json["data"]
    assert model["id"] == MODEL
    assert model["max_model_len"] == 8192
    assert model["owned_by"] == "vllm"
    assert ask(url, "/version", method="GET").json["version"].startswith("harness-")


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [
        ("/v1/models", "", 401),
        ("/v1/models", "Bearer wrong", 401),
        ("/v1/models", "Bearer secret", 200),
        ("/health", "", 200),  # vLLM guards only /v1
    ],
)
def test_key(path: str, key: str, status: int) -> None:
    """Paths under /v1 want the key."""
    with start_engine(QUICK, serving=ServingOptions(api_key="secret")) as engine:
        headers = {"authorization": key} if key else {}
        got = ask(engine.url, path, method="GET", headers=headers)
    assert got.status == status
    assert status == 200 or got.json == {"error": "Unauthorized"}


def test_a_client_that_leaves(url: str) -> None:
    """Its request is aborted at once: no seat, no block is held, and it is counted."""
    before = metrics(url)
    connections = [Connection(url) for _ in range(3)]
    for connection in connections:
        connection.sock.sendall(request(COMPLETIONS, LONG))
    wait_for(lambda: metrics(url)["vllm:num_requests_running"] == 3)
    for connection in connections:
        connection.sock.close()
    wait_for(lambda: metrics(url)["vllm:num_requests_running"] == 0)
    after = metrics(url)
    name = 'vllm:request_success_total{,finished_reason="abort"}'
    assert after[name] - before[name] == 3
    assert after["vllm:kv_cache_usage_perc"] == 0


def test_clients_that_leave_from_the_queue() -> None:
    """One seat: of three requests two wait; all can leave, and a fourth is served."""
    config = EngineConfig(model=MODEL, gpu="h200", max_num_seqs=1)
    with start_engine(config) as engine:
        connections = [Connection(engine.url) for _ in range(3)]
        for connection in connections:
            connection.sock.sendall(request(COMPLETIONS, LONG))
        wait_for(lambda: metrics(engine.url)["vllm:num_requests_waiting"] == 2)
        for connection in reversed(connections):
            connection.sock.close()
        assert ask(engine.url, COMPLETIONS, SHORT).status == 200


def test_a_client_that_does_not_read() -> None:
    """What does not fit its socket is kept for it; others are served meanwhile."""
    with start_engine(QUICK, serving=ServingOptions(first_ns=1, pace_ns=1)) as engine:
        with Connection(engine.url) as slow:
            streams = [request(COMPLETIONS, {**LONG, "stream_options": {"include_usage": True}})]
            slow.sock.sendall(b"".join(streams * 50))  # some 50 x 8000 tokens
            assert ask(engine.url, COMPLETIONS, SHORT).status == 200
            got = [slow.answer().events for _ in range(50)]
        assert [events[-2]["usage"]["completion_tokens"] for events in got] == [8000] * 50


def test_faults() -> None:
    """Faults for tests of clients begin after as many requests as were asked."""
    with start_engine(QUICK, serving=ServingOptions(fail_after=1)) as engine:
        got = [ask(engine.url, COMPLETIONS, SHORT).status for _ in range(3)]
    assert got == [200, 500, 500]
