"""The decoder's own stream of records to Locust's master.

It is a second connection to the master's one port, beside the worker's: records never pass through
the process that reads the sockets. It needs pyzmq, but not Locust with all that it patches.
"""

# Locust tells who is connected (the socket's identity) from who speaks (the message's node id). Our
# identity is our own, so that acknowledgements find us and not the worker. The node id is the
# worker's: Locust gives each new one a worker index, and these number the record files.

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import msgpack
import zmq

from harness.reader.transport import RECORDS, ClockBounds, Outbox, RecordBatch

if TYPE_CHECKING:
    from harness.reader.raw_batch import Output

    Master = tuple[str, int, str]  # host, port, the worker's id there

TICK_MS: Final = 500  # how often it looks whether something is to be sent again
LINGER_S: Final = 2.0  # how long the last records may take to arrive
ASKED: Final = 32  # times what the master's clock says: the fastest answer bounds it best
ASKING_S: Final = 5.0  # on a busy machine, at most


class MasterStream:
    """Keeps frames until the master has acknowledged them; only `wait_for` and `close` block."""

    def __init__(self, output: Output, master: Master) -> None:
        host, port, self._node_id = master
        self._name = name = uuid4().hex
        self._anchor_ns = output.anchor_ns
        self.clock = ClockBounds()
        # What is written on another machine is only a copy: the master writes the run folder's.
        kept = bool(output.file) and output.shared
        self.outbox = Outbox(
            self._send, stream=name, worker=output.worker, run=output.run, kept=kept
        )
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, name.encode())
        self._socket.setsockopt(zmq.LINGER, 0)  # `close` waits for what matters
        self._socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        self._socket.setsockopt(zmq.IPV6, int(_has_ipv6(host)))
        self._socket.connect(f"tcp://{host}:{port}")
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)

    def put(self, frames: list[bytes], known_ns: int) -> None:
        """Send them; `known_ns` as `RecordBatch` has it, 0: nothing new."""
        self.outbox.put(frames, known_ns)
        self.outbox.tick(time.monotonic())

    def wait_for(self, fd: int) -> None:
        """Block until `fd` can be read; meanwhile send again what got lost."""
        self._poller.register(fd, zmq.POLLIN)
        while fd not in self._exchange():
            pass
        self._poller.unregister(fd)

    def close(self) -> None:
        """Wait a moment for the master to take the records that are left, then hang up."""
        until = time.monotonic() + LINGER_S
        while self.outbox.bytes and time.monotonic() < until:
            self._exchange()
        self._socket.close()
        self._context.term()

    def _exchange(self) -> dict[object, int]:
        """Wait a tick at most, take acknowledgements, send what is due; what can be read."""
        ready: dict[object, int] = dict(self._poller.poll(TICK_MS))
        if self._socket in ready:
            # all that have come: several acknowledgements may wait where the poll says "ready" once
            with contextlib.suppress(zmq.Again):
                while True:
                    message = self._socket.recv(zmq.NOBLOCK)
                    _, data, _ = msgpack.unpackb(message)
                    self.clock.take(data, self._now_ns())
                    self.outbox.acknowledged(data["taken"], time.monotonic())
        self.outbox.tick(time.monotonic())
        return ready

    def ask_clock(self) -> int:
        """How far the master's is ahead of this one, as far as is known."""
        no_batch = RecordBatch(
            run="",
            stream=self._name,
            worker=0,
            batch=-1,
            known_ns=0,
            records=b"",
            kept=True,
            sent_ns=0,
        )
        until = time.monotonic() + ASKING_S
        while len(self.clock.recent) < ASKED and time.monotonic() < until:
            self._send(no_batch)
            self._exchange()
        return self.clock.ahead_ns

    def _now_ns(self) -> int:
        return time.monotonic_ns() + self._anchor_ns

    def _send(self, batch: RecordBatch) -> None:
        batch["sent_ns"] = self._now_ns()
        message = msgpack.packb((RECORDS, dict(batch), self._node_id))
        # where the queue is full the batch still counts as sent: without an acknowledgement it is
        # sent again
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send(message, zmq.NOBLOCK)


def _has_ipv6(host: str) -> bool:
    """Whether the name has such an address that this machine can use: as Locust decides it."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            infos = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
            return any(family == socket.AF_INET6 for family, *_ in infos)
    return False
