"""How requests end, on real sockets."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Any

import gevent.socket
import pytest
import trustme
from gevent.server import StreamServer
from reader_cases import LAST, WHOLE, Step, case, send, wire_server
from wire_examples import EVENTS, HEAD, STREAM, chunk, delta, event

from harness.records.request_record import Outcome
from harness.units import MS
from harness.wire.sse import MAX_EVENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from harness.reader.open_stream import Exchange
    from harness.records.request_record import RequestRecord

TOKEN = chunk(EVENTS[1])
ERROR = b'{"error":{"message":"out of room"}}'
SAID = chunk(event(ERROR))
DONE = EVENTS[-1]
BARE = chunk(b"data:\n\n")  # a heartbeat
NAMED = b'event: error\ndata: {"code": 503, "details": "overloaded"}\n\n'
BROKEN = [
    event(delta(content="x")),
    event(delta(content="x")).replace(b'"x"', b'"\xf0\x9f"'),
    event(delta(content="x")).replace(b'"x"', b'"\\ud83d"'),
    event(delta(content="x")).replace(b'"x"', b'"\\"\\ude00"'),
]


def each_100_ms(pieces: Sequence[bytes]) -> list[Step]:
    """Each in a chunk of its own."""
    steps: list[Step] = []
    for piece in pieces:
        steps += [["sleep", 100], *send(chunk(piece))]
    return steps


# for 2 s: a comment, a heartbeat, a comment cut into three
QUIET = each_100_ms([b": keep-alive\n\n"] * 20)
BEATS = each_100_ms([b"data:\n\n"] * 20)
CUT = each_100_ms(([b":", b" k", b"\n"] * 7)[:20])
LONGEST = event(delta(content="x" * (MAX_EVENT_BYTES - 200)))


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server that does as it is told."""
    with wire_server() as port:
        yield port


def plain(status: int, body: bytes, kind: str = "application/json") -> bytes:
    """A whole response with a length."""
    head = f"HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.usefixtures("each_reader")
@pytest.mark.parametrize(
    ("script", "outcome", "error", "tokens"),
    [
        (WHOLE, "ok", "", 3),
        (send(STREAM), "ok", "", 3),
        # without chunks or a length the connection's end is the body's
        (
            [*send(HEAD.replace(b"Transfer-Encoding: chunked\r\n", b""), *EVENTS), ["close"]],
            "ok",
            "",
            3,
        ),
        ([*send(HEAD + TOKEN), ["close"]], "truncated", "the server closed the connection", 1),
        (
            [*send(HEAD + TOKEN), ["sleep", 30], ["reset"]],
            "truncated",
            "Connection reset by peer",
            1,
        ),
        (send(HEAD + TOKEN + LAST), "truncated", "the stream ended without [DONE]", 1),
        # a failure amid a stream is an event, and the stream may end as if all were well
        (send(HEAD + TOKEN, SAID, chunk(DONE) + LAST), "status", "out of room", 1),
        (send(HEAD + TOKEN + SAID + chunk(DONE) + LAST), "status", "out of room", 1),
        ([*send(HEAD + TOKEN + SAID), ["close"]], "status", "out of room", 1),
        # words that nobody knows, a name, a reason: after tokens that C has read past Python
        (
            send(HEAD, *[TOKEN] * 20, chunk(event({"detail": "full"})), chunk(DONE) + LAST),
            "status",
            "full",
            20,
        ),
        (send(HEAD, *[TOKEN] * 20, chunk(NAMED), chunk(DONE) + LAST), "status", "overloaded", 20),
        (
            send(
                HEAD,
                *[TOKEN] * 20,
                chunk(event(delta(content="", finish="abort"))),
                chunk(DONE) + LAST,
            ),
            "status",
            "the server broke the answer off",
            20,
        ),
        # what clients accept, anywhere in a stream
        (send(HEAD, BARE, *[TOKEN, BARE] * 20, chunk(DONE) + LAST), "ok", "", 20),
        (send(HEAD, *[chunk(piece) for piece in BROKEN * 5], chunk(DONE) + LAST), "ok", "", 20),
        (send(HEAD, *[TOKEN] * 20, chunk(DONE.rstrip()) + LAST), "ok", "", 20),
        ([["close"]], "truncated", "the server closed the connection", 0),
        (send(plain(500, ERROR)), "status", "HTTP 500: out of room", 0),
        (send(plain(429, b"slow down", "text/plain")), "status", "HTTP 429: slow down", 0),
        (
            send(plain(200, b'{"choices":[]}')),
            "protocol",
            "the server answered application/json, not text/event-stream",
            0,
        ),
        (send(b"SSH-2.0-OpenSSH_9.6\r\n"), "protocol", "the answer is not HTTP", 0),
        # a whole event may be as long as the limit; nobody waits for the end of a longer one
        (send(HEAD + TOKEN + chunk(LONGEST), chunk(DONE) + LAST), "ok", "", 2),
        (
            [*send(HEAD + TOKEN + chunk(b"x" * (MAX_EVENT_BYTES + 8))), ["hang"]],
            "protocol",
            "an event of the stream is longer than 1 MiB",
            1,
        ),
        (
            [*send(HEAD + TOKEN + chunk(b"data: x\n" * (MAX_EVENT_BYTES // 7))), ["hang"]],
            "protocol",
            "an event of the stream is longer than 1 MiB",
            1,
        ),
        (send(HEAD + TOKEN + b"zz\r\n"), "protocol", "the answer is not HTTP", 1),
    ],
)
def test_what_a_server_can_do(
    port: int, script: list[Step], outcome: str, error: str, tokens: int
) -> None:
    """The user hears the same outcome as the record says; what came before the end is kept."""
    with case(port) as it:
        exchange, record = it.one(script)
    assert record.outcome.value == outcome
    assert record.error[: len(error)] == error
    assert exchange.outcome is record.outcome
    assert len(record.at_ns) == tokens
    assert record.connect_ns > 0
    assert record.sent_ns <= record.done_ns


@pytest.mark.parametrize(
    ("script", "limit", "error", "tokens"),
    [
        ([["hang"]], "first_token_ns", "no first token in 0.3 s", 0),
        # vLLM sends the head at once and the first token when its turn comes
        ([*send(HEAD), ["hang"]], "first_token_ns", "no first token in 0.3 s", 0),
        ([*send(HEAD + TOKEN), ["hang"]], "idle_ns", "no further byte in 0.3 s", 1),
        # comments keep connections open, whole or cut anywhere; they are no life of the stream
        ([*send(HEAD), *QUIET], "first_token_ns", "no first token in 0.3 s", 0),
        ([*send(HEAD + TOKEN), *QUIET], "idle_ns", "no further byte but comments in 0.3 s", 1),
        ([*send(HEAD + TOKEN, TOKEN), *CUT], "idle_ns", "no further byte but comments in 0.3 s", 2),
        ([*send(HEAD), *BEATS], "first_token_ns", "no first token in 0.3 s", 0),
        (
            [*send(HEAD + TOKEN, TOKEN), *BEATS],
            "idle_ns",
            "no further byte but comments in 0.3 s",
            2,
        ),
        (
            [*send(HEAD + TOKEN), ["hang"]],
            "total_ns",
            "the whole request took longer than 0.3 s",
            1,
        ),
    ],
)
def test_timeouts_name_their_phase(
    port: int, script: list[Step], limit: str, error: str, tokens: int
) -> None:
    """Only the phase that took too long is cut off, and the tokens so far are kept."""
    with case(port, **{limit: 300 * MS}) as it:
        exchange, record = it.one(script)
    assert record.outcome == Outcome.timeout
    assert record.error == error
    assert len(record.at_ns) == tokens
    assert exchange.outcome is Outcome.timeout
    assert record.done_ns - record.sent_ns >= 300 * MS


def test_a_slow_queue_is_not_an_idle_stream(port: int) -> None:
    """The idle limit counts from the first byte of the body."""
    with case(port, idle_ns=300 * MS) as it:
        _, record = it.one([*WHOLE[:1], ["sleep", 800], *WHOLE[1:]])
    assert record.outcome is Outcome.ok


@pytest.mark.usefixtures("each_reader")
def test_tokens_among_comments(port: int) -> None:
    """A comment in one read with an event hides none, and the events in between are alive."""
    mixed: list[Step] = []
    for piece in EVENTS[:-1]:
        mixed += [["sleep", 300], *send(chunk(b": a\n\n" + piece + b": b\n"))]
    with case(port, idle_ns=1000 * MS) as it:
        _, record = it.one([*send(HEAD), *mixed, *send(chunk(EVENTS[-1]) + LAST)])
    assert record.outcome == Outcome.ok
    assert len(record.at_ns) == 3


def test_nobody_listens() -> None:
    """The sentence says where."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = listener.getsockname()[1]
    with case(closed) as it:
        exchange, record = it.one([])
    assert record.outcome is exchange.outcome is Outcome.connect
    assert record.error == f"cannot connect to 127.0.0.1:{closed} (Connection refused)"


ANSWERS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


def resolver(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """What each name has; the names that were looked up."""
    looked_up = []

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        looked_up.append(host)
        infos = []
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            infos.append((family, 1, 6, "", (address, port)))
        return infos

    monkeypatch.setattr(gevent.socket, "getaddrinfo", getaddrinfo)
    return looked_up


@contextlib.contextmanager
def replicas(hosts: Sequence[str]) -> Iterator[tuple[int, Callable[[], list[int]]]]:
    """A port at which each of them answers, and how many connections each has had."""
    counts = dict.fromkeys(hosts, 0)

    def server(host: str, port: int) -> StreamServer:
        def handle(sock: Any, _: Any) -> None:
            counts[host] += 1
            while b"\r\n\r\n" in sock.recv(65_536):
                sock.sendall(STREAM)

        started = StreamServer((host, port), handle)
        started.start()
        return started

    servers = [server(hosts[0], 0)]
    port = servers[0].server_port
    try:
        servers += [server(host, port) for host in hosts[1:]]
        yield port, lambda: list(counts.values())
    finally:
        for started in servers:
            started.stop()


def test_a_name_with_several_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A headless service: every replica gets as many connections, and one lookup serves all."""
    looked_up = resolver(monkeypatch, *ANSWERS)
    with replicas(ANSWERS) as (port, counts), case(port, host="replicas") as it:
        for first in (0, 9):
            gevent.joinall([it.start(first + n, []) for n in range(9)])
        assert it.reader.link.flush(10)
        assert {record.outcome for record in it.records.values()} == {Outcome.ok}
        assert counts() == [3, 3, 3]  # the second time they are kept ones
        assert it.reader.figures()["addresses"] == list(ANSWERS)
    assert looked_up == ["replicas"]


def test_an_address_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one takes its connections; what was measured is said."""
    resolver(monkeypatch, *ANSWERS)
    with replicas(ANSWERS[:2]) as (port, counts), case(port, host="replicas") as it:
        gevent.joinall([it.start(n, []) for n in range(6)])
        assert it.reader.link.flush(10)
        assert {record.outcome for record in it.records.values()} == {Outcome.ok}
        assert sum(counts()) == 6
        assert min(counts()) >= 2
        assert it.reader.figures()["addresses"] == list(ANSWERS[:2])


def test_another_family_is_another_way_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens at the first family's address: it is not tried again."""
    resolver(monkeypatch, "::1", "127.0.0.1")
    with replicas(ANSWERS[:1]) as (port, counts), case(port, host="localhost") as it:
        for number in range(2):
            it.ask(number, [])
        addresses = [info[4][0] for info in it.reader.addresses.in_turn()]
        assert addresses == ["127.0.0.1", "::1"]
        assert counts() == [1]


def test_a_name_without_an_address() -> None:
    """No lookup leaves the machine for it."""
    with case(1, host="no such host") as it:
        _, record = it.one([])
    assert record.outcome == Outcome.connect
    assert record.error[:28] == "no such host has no address "


def test_a_server_that_never_accepts() -> None:
    """Its backlog is full: connecting is a phase with its limit too."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        fillers = [socket.socket() for _ in range(2)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        with case(listener.getsockname()[1]) as it:
            _, record = it.one([])
        for filler in fillers:
            filler.close()
    assert record.outcome == Outcome.timeout
    assert record.error == "connecting took longer than 2 s"


def test_connections_are_kept_alive() -> None:
    """Ten requests in a row use one connection; only the first had to connect."""
    with wire_server() as port, case(port) as it:
        for number in range(10):
            it.ask(number, WHOLE)
        assert it.reader.link.flush(10)
        first, *others = (it.records[n].connect_ns for n in range(10))
        assert first > 0
        assert max(others) <= 0
        assert it.log()["connections"] == 1 + 1  # and the one that asks


@pytest.mark.parametrize("pause_s", [0.0, 0.1])
def test_a_server_that_closes_after_each_answer(pause_s: float) -> None:
    """Without saying so: the next request is sent on a new connection, whenever that is noticed."""
    with wire_server() as port, case(port) as it:
        for number in range(5):
            it.ask(number, [*WHOLE, ["close"]], [*WHOLE, ["close"]])
            gevent.sleep(pause_s)
        assert it.reader.link.flush(10)
        assert [it.records[n].outcome.value for n in range(5)] == ["ok"] * 5


@pytest.mark.usefixtures("each_reader")
def test_killed_users_and_a_closed_reader_leave_records(port: int) -> None:
    """One is killed, one is open at the end, one is asked for after it: all are cancelled."""
    script = [*send(HEAD + TOKEN), ["hang"]]
    with case(port) as it:
        users = [it.start(number, script) for number in (0, 1)]
        it.wait_for_heads(2)  # the token came with it
        users[0].kill()
        it.reader.close()
        assert it.ask(2, script).outcome is Outcome.cancelled
    for number in (0, 1):
        assert it.records[number].outcome.value == "cancelled"
        assert len(it.records[number].at_ns) == 1
    assert users[1].get().outcome is Outcome.cancelled


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """A certificate authority."""
    return trustme.CA()


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """A client's context."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def certificate(authority: trustme.CA, name: str, folder: Path) -> Path:
    """For `name`, in a file."""
    file = folder / "certificate.pem"
    authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(str(file))
    return file


@pytest.mark.usefixtures("each_reader")
def test_tls(authority: trustme.CA, tmp_path: Path) -> None:
    """Streams over TLS are read like others, stamps included; connections are kept."""
    file = certificate(authority, "localhost", tmp_path)
    tls = trusting(authority)
    with wire_server(file) as port, case(port, host="localhost", tls=tls) as it:
        for number in range(3):
            it.ask(number, [[*step] for step in WHOLE])
        assert it.reader.link.flush(10)
        records = [it.records[n] for n in range(3)]
    for record in records:
        assert record.outcome.value == "ok"
        assert len(record.at_ns) == 3
    assert [record.connect_ns > 0 for record in records] == [True, False, False]


def test_a_certificate_for_another_name(authority: trustme.CA, tmp_path: Path) -> None:
    """No connection, in clear words."""
    file = certificate(authority, "example.org", tmp_path)
    tls = trusting(authority)
    with wire_server(file) as port, case(port, host="localhost", tls=tls) as it:
        exchange, record = it.one(WHOLE)
    assert record.outcome is exchange.outcome is Outcome.connect
    assert record.error == "TLS: Hostname mismatch, certificate is not valid for 'localhost'."


def test_tls_to_a_server_without_it(port: int) -> None:
    """It hangs or answers something else: an outcome, not an exception."""
    with case(port, tls=ssl.create_default_context()) as it:
        _, record = it.one(WHOLE)
    assert record.outcome in {Outcome.connect, Outcome.timeout}


PLAN = (2, 5, 7, 300, 1, 40, "turn")


def check_plan(record: RequestRecord) -> None:
    """The record has what its request was planned as."""
    session, turn, think_ns, new_tokens, mix_row, planned_prompt, name = PLAN
    assert record.session == session
    assert record.turn == turn
    assert record.think_ns == think_ns
    assert record.new_tokens == new_tokens
    assert record.mix_row == mix_row
    assert record.planned_prompt == planned_prompt
    assert record.name == name


def check_told_figures(exchange: Exchange, record: RequestRecord) -> None:
    """The user is told the record's TTFT and count; None where the record has none."""
    if record.at_ns:
        assert exchange.ttft_ms == (record.at_ns[0] - record.sent_ns) / 1e6
    else:
        assert exchange.ttft_ms is None
    if record.output_tokens >= 0:
        assert exchange.output_tokens == record.output_tokens
    else:
        assert exchange.output_tokens is None


@pytest.mark.usefixtures("each_reader")
@pytest.mark.parametrize(
    ("script", "want"),
    [
        (WHOLE, "a\u2028b\u20ac\\n\nc"),  # without its reasoning
        (send(STREAM), "a\u2028b\u20ac\\n\nc"),
        (send(HEAD, *[TOKEN] * 40, chunk(event(delta(content="!"))), chunk(DONE) + LAST), "!"),
        (
            send(
                HEAD,
                *[chunk(event(delta(usage=n, content=f"w{n} "))) for n in range(1, 60)],
                chunk(DONE) + LAST,
            ),
            "".join(f"w{n} " for n in range(1, 60)),
        ),
        (  # the end comes alone: C has read past Python what the latest count stands in
            [
                *send(HEAD, chunk(event(delta(usage=1, content="w")))),
                ["sleep", 20],
                *send(*[chunk(event(delta(usage=n, content="w"))) for n in range(2, 20)]),
                ["sleep", 20],
                *send(chunk(DONE) + LAST),
            ],
            "w" * 19,
        ),
        ([*send(HEAD + chunk(EVENTS[2])), ["close"]], ""),
        (send(HEAD, chunk(event(b'{"some": 1}')), chunk(DONE) + LAST), ""),
        (send(HEAD, chunk(event(b"[1")), chunk(DONE) + LAST), ""),
        (send(plain(500, b"{}")), ""),
    ],
)
def test_the_text_of_an_answer(port: int, script: list[Step], want: str) -> None:
    """Where it is asked for, of answers that ended well; figures are the record's, always."""
    records = []
    for keep in (True, False):
        with case(port) as it:
            exchange = it.ask(0, script, keep_text=keep, plan=PLAN)
            assert it.reader.link.flush(10)
            record = it.records[0]
            check_plan(record)
            records.append((record.outcome, len(record.at_ns), record.output_tokens))
            assert exchange.text == (want if keep else "")
            check_told_figures(exchange, record)
    assert records[0] == records[1]
