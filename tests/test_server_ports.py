"""Ports of the loopback for servers to come."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.server import address
from harness.server.address import LOOPBACK, free_ports, ports_of_connections


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's kernel says which ports it gives to connections."""
    file = tmp_path / "ports"
    monkeypatch.setattr(address, "PORT_RANGE", file)
    return file


@pytest.mark.parametrize(
    ("says", "least", "most"),
    [
        ("32768\t60999\n", 10_000, 32_767),
        (None, 10_000, 32_767),
        # a room of 20 ports
        ("10020 60999", 10_000, 10_019),
        # no room below: among the others
        ("1024 65535", 10_000, 65_535),
        ("10015 65535", 10_000, 65_535),
    ],
)
def test_a_row_of_ports(given: Path, says: str | None, least: int, most: int) -> None:
    """They can be bound, and where there is room below, no connection is given one."""
    if says is not None:
        given.write_text(says)
    row = free_ports(16, set())
    assert len(row) == 16
    assert least <= row[0] < row[-1] <= most
    with ExitStack() as servers:
        for port in row:
            servers.enter_context(socket.create_server((LOOPBACK, port)))


def test_ports_that_are_taken(given: Path) -> None:
    """By a server, or by whoever asks; where there are no others, a sentence says so."""
    given.write_text("32768 60999")
    first = free_ports(4, set()).start
    given.write_text(f"{first + 4} 65535")
    room = range(first, first + 4)
    assert ports_of_connections() == range(first + 4, 65_536)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(address, "UNUSUAL_PORT", first)
        assert free_ports(4, set()) == room
        with socket.create_server((LOOPBACK, first + 2)), pytest.raises(ConfigError) as used:
            free_ports(4, set())
        with pytest.raises(ConfigError):
            free_ports(4, {first})
    assert str(used.value) == (
        f"no 4 ports in a row of 127.0.0.1 were free in 1,000 tries: expected some from {first} "
        "on; try again once other programs have ended."
    )


def test_a_kernel_that_does_not_say(given: Path) -> None:
    """As on another system than Linux."""
    assert not given.exists()
    assert ports_of_connections() is None
