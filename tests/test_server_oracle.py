"""The engine's answer key against what a client reads, and streams by the clock, on real sockets.

Nothing here is judged by how long it took: only by order, counts and what may not be too early.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING, Any

import pytest
from engine_client import MODEL, QUICK, REAL_NS, Connection, ask, metrics, request

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.engine.server import ServingOptions
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.engine.process import EngineProcess

COMPLETIONS = "/v1/completions"
ASKED = {"model": MODEL, "prompt": "a b", "stream": True}
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with RST, not FIN
FIRST_NS = 30 * MS
PACE_NS = 10 * MS
INTERVALS = EngineConfig(model=MODEL, gpu="h200", jitter=0.0, time_scale=0.5, stream_interval=4)
ENGINES = {
    "engine": (QUICK, ServingOptions()),
    "merged": (INTERVALS, ServingOptions()),
    "paced": (QUICK, ServingOptions(first_ns=FIRST_NS, pace_ns=PACE_NS)),
}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[EngineProcess]:
    """Each kind of engine."""
    config, serving = ENGINES[request.param]
    with start_engine(config, serving=serving) as process:
        yield process


def oracle(url: str) -> list[dict[str, Any]]:
    """What the oracle knows of each request."""
    kept: list[dict[str, Any]] = ask(url, "/oracle", method="GET").json["requests"]
    return kept


def texts(events: list[Any]) -> list[int]:
    """Tokens of each event that has text."""
    words = [event["choices"][0]["text"].count("tok") for event in events if event != "[DONE]"]
    return [count for count in words if count]


def test_pairing(engine: EngineProcess) -> None:
    """One entry per request, known by both ids, and in it one number per event."""
    assert ask(engine.url, "/oracle/reset").status == 200
    answers = {}
    connections = {f"mine-{n}": Connection(engine.url) for n in range(4)}
    planned = (1, 2, 9, 17)
    for (name, connection), tokens in zip(connections.items(), planned, strict=True):
        body = ASKED | {"max_tokens": tokens}
        connection.sock.sendall(request(COMPLETIONS, body, headers={"X-Request-Id": name}))
    for name, connection in connections.items():
        events = connection.answer().events
        answers[name] = (events[0]["id"], texts(events))
        connection.sock.close()
    entries = oracle(engine.url)
    got = {one["client_id"]: (one["id"], one["tokens"]) for one in entries}
    assert got == answers
    tokens_of = [sum(got[name][1]) for name in connections]
    assert tokens_of == [1, 2, 9, 17]


def test_order(engine: EngineProcess) -> None:
    """Arrived, then before and after each send, each no earlier than the one before."""
    for tokens in (20, 3):
        ask(engine.url, COMPLETIONS, ASKED | {"max_tokens": tokens})
    kept = oracle(engine.url)
    assert [sum(one["tokens"]) for one in kept[-2:]] == [20, 3]
    for one in kept:
        pairs = zip(one["before_ns"], one["after_ns"], strict=True)
        times = [one["arrived_ns"], *(at for pair in pairs for at in pair)]
        assert times == sorted(times)
        assert times[0] > REAL_NS
        assert len(one["tokens"]) == len(one["before_ns"])


@pytest.mark.parametrize(
    ("body", "sends"),
    [
        ({"max_tokens": 6, "stream": False}, [6]),  # in one piece
        ({"max_tokens": 1}, [1]),
        ({"max_tokens": 0}, None),  # refused: not a request of the engine's
        ({"model": "x"}, None),
    ],
)
def test_what_is_kept(body: dict[str, Any], sends: list[int] | None, engine: EngineProcess) -> None:
    """Only what the engine took is in the oracle; a reset empties it."""
    ask(engine.url, "/oracle/reset")
    assert oracle(engine.url) == []
    ask(engine.url, COMPLETIONS, ASKED | body)
    want = [] if sends is None else [sends]
    assert [one["tokens"] for one in oracle(engine.url)] == want


def test_merged_by_the_interval() -> None:
    """--stream-interval 4: the first alone, then four or more at once, the rest with the last."""
    with start_engine(INTERVALS) as engine:
        counts = texts(ask(engine.url, COMPLETIONS, ASKED | {"max_tokens": 14}).events)
    assert sum(counts) == 14
    assert len(counts) <= 5  # 1 + 4 + 4 + 4 + 1
    assert min(counts[1:-1], default=4) >= 4


def test_pace() -> None:
    """By the clock no token is early: the n-th is sent FIRST_NS + n * PACE_NS after it was asked.

    Each stream has its own phase, and a late token does not delay the next ones' plan.
    """
    slew_ns = MS  # the plan is monotonic, the oracle's clock is not
    with start_engine(QUICK, serving=ServingOptions(first_ns=FIRST_NS, pace_ns=PACE_NS)) as engine:
        with Connection(engine.url) as one, Connection(engine.url) as two:
            for connection in (one, two):
                connection.sock.sendall(request(COMPLETIONS, ASKED | {"max_tokens": 8}))
            assert sum(texts(one.answer().events)) == 8
            assert sum(texts(two.answer().events)) == 8
        for sent in oracle(engine.url):
            token = 0
            for before, new in zip(sent["before_ns"], sent["tokens"], strict=True):
                token += new
                planned = sent["arrived_ns"] + FIRST_NS + (token - 1) * PACE_NS
                assert before >= planned - slew_ns
        figures = metrics(engine.url)
    assert figures["vllm:prompt_tokens_total"] == 2 * 2
    assert figures["vllm:generation_tokens_total"] == 2 * 8
    assert figures['vllm:request_success_total{,finished_reason="length"}'] == 2
    assert figures["vllm:num_requests_running"] == 0


@pytest.mark.parametrize("linger", [None, RESET])
@pytest.mark.parametrize("stream", [True, False])
def test_gone_amid_its_stream(stream: bool, linger: bytes | None, engine: EngineProcess) -> None:
    """A client that has read some tokens and hangs up is aborted; its blocks are free again."""
    before = metrics(engine.url)
    with Connection(engine.url) as connection:
        body = ASKED | {"max_tokens": 8000, "stream": stream}
        connection.sock.sendall(request(COMPLETIONS, body))
        wait_for(engine.url, "vllm:num_requests_running", 1)
        if stream:
            assert b"tok" in connection.sock.recv(65_536)
        if linger:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    wait_for(engine.url, "vllm:num_requests_running", 0)
    after = metrics(engine.url)
    sent = oracle(engine.url)[-1]["tokens"]
    assert (sum(sent) > 0) == stream
    assert sum(sent) < 8000
    names = ("length", "abort")
    names = tuple(f'vllm:request_success_total{{,finished_reason="{name}"}}' for name in names)
    assert [after[name] - before[name] for name in names] == [0, 1]
    assert after["vllm:kv_cache_usage_perc"] == 0
    assert ask(engine.url, COMPLETIONS, ASKED | {"max_tokens": 3}).status == 200


def wait_for(url: str, series: str, value: float) -> None:
    """Until a figure has this value; a test that waits for ever says which."""
    for _ in range(1000):
        if metrics(url)[series] == value:
            return
        time.sleep(0.01)
    raise AssertionError(f"waited 10 s in vain for {series} to be {value}")
