"""The engine's listening socket: what its connections inherit, and when it cannot be had."""

from __future__ import annotations

import socket

import pytest

from harness.engine.client_socket import SO_TIMESTAMPNS, UNPACED_CONGESTION_CONTROLS, listen
from harness.errors import ConfigError


def test_connections_inherit() -> None:
    """Stamps are on and segments are not paced, whatever the host's default is."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            name = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            stamps = accepted.getsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS)
    assert name.rstrip(b"\0") in UNPACED_CONGESTION_CONTROLS
    assert stamps == 1


@pytest.mark.parametrize("names", [(b"nonesuch", b"reno"), (b"nonesuch",), ()])
def test_where_it_cannot_be_chosen(
    names: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel without these, or without the option, listens all the same."""
    monkeypatch.setattr("harness.engine.client_socket.UNPACED_CONGESTION_CONTROLS", names)
    with listen("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0


def test_a_busy_port() -> None:
    """One sentence with what to try, and no socket left open."""
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"at 127.0.0.1:{port} \(.*in use\).*try --port 0"):
            listen("127.0.0.1", port)
