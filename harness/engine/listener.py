"""The engine's listening socket: what it is set to, every connection inherits."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

from harness.engine.connection import SO_TIMESTAMPNS
from harness.errors import ConfigError

BACKLOG: Final = 4096
UNPACED: Final = (b"reno", b"cubic")


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0: any free one. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    send_at_once(listener)
    try:
        listener.bind((host, port))
    except OSError as problem:
        listener.close()
        raise ConfigError(
            f"the engine cannot listen at {host}:{port} ({problem.strerror}): expected a free "
            "port of this machine; try --port 0."
        ) from None
    listener.listen(BACKLOG)
    return listener


def send_at_once(sock: socket.socket) -> None:
    """Choose a congestion control that does not pace, where this kernel lets us choose.

    BBR, some hosts' default, spreads segments over time: they would leave later than the send that
    the oracle noted, and a client's clocks would be blamed for it.
    """
    for name in UNPACED:
        with contextlib.suppress(OSError, AttributeError):  # no such name, or no such option
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
            return
