"""How exact the kernel's stamp of an arrival is on this host: on loopback and over a veth pair.

    python bench/floor.py --messages 2000

A sender says for each small message the clock just before and just after its `send`; the receiver
reads the stamp of the segment that brought it. On loopback the stamp is taken inside the sender's
`send`, so it must lie between the two. Over a veth pair (two network namespaces; needs root and
iproute2) it is taken when the segment enters the receiving namespace: the floor of a path with a
network interface, but no wire, no card and no interrupt moderation.

And how far the clock just before a `send` is from the kernel's own stamp of it (SO_TIMESTAMPING),
which it takes when it gives the segment to the interface, the loopback or a card's driver; and the
CPU time that reading such a stamp takes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import struct
import subprocess
import sys
import time

import numpy as np

SO_TIMESTAMPNS = 35  # 64-bit Linux; Python has no name for it
SO_TIMESTAMPING = 37
TRANSMIT_STAMPS = 1 << 1 | 1 << 4 | 1 << 11  # of software, told without the data
REQUEST_BYTES = 1500
GAP_S = 0.002
HOST, PEER = "10.213.7.1", "10.213.7.2"
NAMESPACE = f"harness{os.getpid()}"
LINK = f"vh{os.getpid() % 100000}"
PAIR = struct.Struct("qq")


def send(host: str, port: int, messages: int) -> None:
    """The child: each message holds the clock before and after the send of the one before it."""
    with socket.create_connection((host, port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        before = after = 0
        for _ in range(messages + 1):
            data = PAIR.pack(before, after)
            time.sleep(GAP_S)
            before = time.time_ns()
            sock.send(data)
            after = time.time_ns()


def receive(server: socket.socket, messages: int) -> np.ndarray:
    """(messages, 3): before, stamp, after in ns."""
    sock, _ = server.accept()
    rows, stamps = [], []
    with sock:
        for _ in range(messages + 1):
            data, ancillary, _, _ = sock.recvmsg(PAIR.size, 64)
            stamp = struct.unpack("qq", ancillary[0][2][:16])
            stamps.append(stamp[0] * 10**9 + stamp[1])
            rows.append(PAIR.unpack(data))
    told = np.array(rows[1:])
    return np.column_stack([told[:, 0], stamps[:-1], told[:, 1]])


def measure(host: str, messages: int, prefix: list[str]) -> None:
    """One path."""
    with socket.create_server((host, 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        port = server.getsockname()[1]
        time.sleep(0.05)  # stamping is switched on for the whole host, in about a millisecond
        child = subprocess.Popen(
            [
                *prefix,
                sys.executable,
                __file__,
                "--send",
                f"{host}:{port}",
                "--messages",
                str(messages),
            ]
        )
        times = receive(server, messages)
        child.wait()
    after_before = (times[:, 1] - times[:, 0]) / 1e3
    before_after = (times[:, 2] - times[:, 1]) / 1e3
    inside = ((after_before >= 0) & (before_after >= 0)).mean()
    print(
        f"{'veth' if prefix else 'loopback':9s} stamp after the clock before send: p50 "
        f"{np.quantile(after_before, 0.5):.1f}, p99 {np.quantile(after_before, 0.99):.1f}, max "
        f"{after_before.max():.1f} us; before the clock after it: p50 "
        f"{np.quantile(before_after, 0.5):.1f} us; between the two in {inside:.2%}"
    )


def transmit(messages: int) -> None:
    """On loopback: the clock before a send, the kernel's stamp of it, the clock after."""
    rows, cost_ns = [], []
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        with sock, peer:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, TRANSMIT_STAMPS)
            time.sleep(0.05)
            for _ in range(messages):
                before = time.time_ns()
                sock.send(bytes(REQUEST_BYTES))
                after = time.time_ns()
                began = time.thread_time_ns()
                _, ancillary, _, _ = sock.recvmsg(1, 256, socket.MSG_ERRQUEUE)
                cost_ns.append(time.thread_time_ns() - began)
                stamps = [data for _, kind, data in ancillary if kind == SO_TIMESTAMPING]
                seconds, ns = struct.unpack("qq", stamps[0][:16])
                rows.append((before, seconds * 10**9 + ns, after))
                peer.recv(1 << 16)
                time.sleep(GAP_S)
    times = np.array(rows)
    late_us = (times[:, 1] - times[:, 0]) / 1e3
    inside = (times[:, 1] <= times[:, 2]).mean()
    print(
        f"{'send':9s} the kernel's stamp after the clock before send: p50 "
        f"{np.quantile(late_us, 0.5):.1f}, p99 {np.quantile(late_us, 0.99):.1f}, max "
        f"{late_us.max():.1f} us; before the clock after it in {inside:.2%}; reading it takes "
        f"{np.median(cost_ns) / 1e3:.1f} us of CPU"
    )


@contextlib.contextmanager
def veth() -> object:
    """Two ends of a cable, the far one in a namespace of its own."""

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)  # noqa: S607 - the system's

    ip("netns", "add", NAMESPACE)
    try:
        ip("link", "add", LINK, "type", "veth", "peer", "name", "far", "netns", NAMESPACE)
        ip("addr", "add", f"{HOST}/30", "dev", LINK)
        ip("link", "set", LINK, "up")
        ip("-n", NAMESPACE, "addr", "add", f"{PEER}/30", "dev", "far")
        ip("-n", NAMESPACE, "link", "set", "far", "up")
        yield
    finally:
        ip("netns", "del", NAMESPACE)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--send", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.send:
        where, _, number = asked.send.rpartition(":")
        send(where, int(number), asked.messages)
        sys.exit()
    measure("127.0.0.1", asked.messages, [])
    transmit(asked.messages)
    if os.geteuid() or not shutil.which("ip"):
        sys.exit("veth: needs root and iproute2")
    with veth():
        measure(HOST, asked.messages, ["ip", "netns", "exec", NAMESPACE])
