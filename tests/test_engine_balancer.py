"""The balancer on loopback: who gets a connection, and what happens when servers come and go."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from gateway import Gateway

from harness.lifecycle.balancer import WELL, Balancer, BalancerProcess, Fault
from harness.server.address import Address, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def named(*names: bytes) -> Iterator[list[str]]:
    """Servers that say their name, then repeat what they are sent until the client has ended."""

    def serve(listener: socket.socket, name: bytes) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock = listener.accept()[0]
                threading.Thread(target=echo, args=(sock, name), daemon=True).start()

    def echo(sock: socket.socket, name: bytes) -> None:
        with sock, contextlib.suppress(OSError):
            sock.sendall(name)
            while data := sock.recv(65_536):
                sock.sendall(data)

    with contextlib.ExitStack() as stack:
        found = []
        for name in names:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            threading.Thread(target=serve, args=(listener, name), daemon=True).start()
            found.append(f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield found
        for listener in found:  # wakes accept()
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", Address.parse(listener).port)).close()


def connect(balancer: Gateway) -> tuple[socket.socket, bytes]:
    """A new connection, and the name of the server that it reached; b"": none."""
    sock = socket.create_connection(("127.0.0.1", Address.parse(balancer.url).port))
    sock.settimeout(20)
    return sock, sock.recv(1)


@pytest.mark.parametrize(
    ("in_turn", "want"),
    [
        # a, b and c in turn; then b is gone and d is there
        (True, "abc" + "abc" + "acda"),
        (False, "abc" + "abc" + "ddda"),  # d catches up, and wins a tie by its turn
    ],
)
def test_whose_turn_it_is(in_turn: bool, want: str) -> None:
    """By turns or by the fewest connections; a server comes and one goes while others are open."""
    with (
        named(b"a", b"b", b"c", b"d") as urls,
        closing(Gateway(urls[:3], in_turn=in_turn)) as balancer,
    ):
        got = ""
        held = []
        for _ in range(6):
            sock, name = connect(balancer)
            held.append(sock)
            got += name.decode()
        balancer.servers = [urls[0], urls[2], urls[3]]
        for _ in range(4):
            sock, name = connect(balancer)
            held.append(sock)
            got += name.decode()
        held[1].sendall(b"still here")  # of b, which is given no more
        assert held[1].recv(99) == b"still here"
        for sock in held:
            sock.close()
    assert got == want


def test_all_bytes_and_a_half_closed_connection() -> None:
    """Both directions whole, also after the client has ended its own; then it is gone."""
    sent = bytes(range(256)) * 8192
    with named(b"a") as urls, closing(Gateway(urls)) as balancer:
        sock, _ = connect(balancer)
        sender = threading.Thread(
            target=lambda: (sock.sendall(sent), sock.shutdown(socket.SHUT_WR))
        )
        sender.start()
        got = b"".join(iter(lambda: sock.recv(65_536), b""))
        sender.join()
        sock.close()
    assert got == sent
    assert list(balancer.connections.values()) == [0]


def test_nothing_is_kept_of_a_connection_that_has_ended() -> None:
    """A drill may have a million of them."""

    async def connect_once(url: str) -> list[int]:
        balancer = Balancer([url])
        server = await asyncio.start_server(balancer.serve, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            assert await reader.read(1) == b"a"
            kept = [len(balancer.serving)]
            writer.close()
            while balancer.serving and len(kept) < 500:
                await asyncio.sleep(0.02)
                kept.append(len(balancer.serving))
        return kept

    with named(b"a") as urls:
        kept = asyncio.run(connect_once(urls[0]))
    assert kept[0] == 1
    assert kept[-1] == 0


def test_a_server_that_refuses_is_passed_over() -> None:
    """The next one is tried; with none left the connection is closed. `close` cuts the rest."""
    dead = f"http://127.0.0.1:{free_port()}"
    with named(b"a") as urls, closing(Gateway([dead, *urls], in_turn=True)) as balancer:
        first = connect(balancer)
        second = connect(balancer)
        balancer.servers = [dead]
        third = connect(balancer)
    assert [name for _, name in (first, second, third)] == [b"a", b"a", b""]
    assert first[0].recv(1) == b""
    for sock, _ in (first, second, third):
        sock.close()


def test_canned_answers() -> None:
    """By how the first bytes begin; other connections are passed on with them."""
    with named(b"a") as urls, closing(Gateway(urls, answers={b"GET /m": b"none"})) as balancer:
        got = []
        for says in (b"GET /metrics", b"POST /"):
            with socket.create_connection(("127.0.0.1", Address.parse(balancer.url).port)) as sock:
                sock.sendall(says)
                sock.shutdown(socket.SHUT_WR)
                got.append(sock.makefile("rb").read())
    assert got == [b"none", b"aPOST /"]


def test_faults_come_and_go() -> None:
    """What is cut off arrives when it is over; a slow way changes no byte."""
    with named(b"a", b"b") as (first, second), closing(Gateway([first, second])) as balancer:
        one = connect(balancer)[0]
        other = connect(balancer)[0]
        with one, other:
            balancer.faults[first] = Fault(cut=True)
            one.sendall(b"held")
            other.sendall(b"through")
            assert other.recv(7) == b"through"
            one.settimeout(0.3)
            with pytest.raises(TimeoutError):
                one.recv(4)
            balancer.faults[first] = Fault(delay_s=0.01, bytes_per_s=10_000)
            one.settimeout(20)
            assert one.recv(4) == b"held"
            one.sendall(b"again")
            assert one.recv(5) == b"again"


def test_a_balancer_of_its_own() -> None:
    """It hears of faults by its standard input, and ends with it."""
    with named(b"a") as (server,), BalancerProcess([server]) as balancer:
        sock = socket.create_connection(("127.0.0.1", Address.parse(balancer.url).port))
        with sock:
            sock.settimeout(20)
            assert sock.recv(1) == b"a"
            balancer.set_fault(server, Fault(delay_s=0.01))
            balancer.set_fault(server, WELL)
            sock.sendall(b"still here")
            assert sock.recv(10) == b"still here"
