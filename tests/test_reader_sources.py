"""More connections than one source address has ports, in a network namespace with few of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.run import preflight
from harness.server import address as server_address
from harness.server.address import Address

PORTS = 8
ALONE = [
    "unshare",
    "--map-root-user",
    "--net",
    "sh",
    "-c",
    'ip link set lo up && echo 50000 50007 > /proc/sys/net/ipv4/ip_local_port_range && exec "$@"',
    "sh",
]
CONNECT = """
import collections, json, socket
from harness.reader.client_connection import Addresses, Connection, Place
with socket.create_server(("127.0.0.1", 9000), backlog=64) as listener:
    addresses = Addresses(Place("127.0.0.1", 9000))
    connections = [Connection(addresses) for _ in range(20)]
    sources = collections.Counter(one.sock.getsockname()[0] for one in connections)
    print(json.dumps(list(sources.values())))
    for one in connections:
        one.close()
"""


def alone(*command: str) -> subprocess.CompletedProcess[str]:
    """Run in a namespace of its own; skips the test where there can be none."""
    usable = subprocess.run([*ALONE, "true"], capture_output=True, text=True, check=False)
    if usable.returncode:
        pytest.skip(f"no network namespace here ({usable.stderr.strip()})")
    return subprocess.run([*ALONE, *command], capture_output=True, text=True, check=True)


def test_the_next_source_address() -> None:
    """Each has its own ports towards the same server: 8 of one, 8 of the next, the rest."""
    done = alone(sys.executable, "-W", "ignore", "-c", CONNECT)
    assert done.stdout == "[8, 8, 4]\n"


@pytest.mark.parametrize(
    ("url", "n_addresses", "users"),
    [
        ("http://10.0.0.1:8000", 1, PORTS),
        ("http://10.0.0.1:8000", 3, 3 * PORTS),
        ("http://127.0.0.1:8000", 1, 64 * PORTS),
    ],
)
def test_too_few_ports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, n_addresses: int, users: int
) -> None:
    """A port for each user is enough; one more user is refused in a sentence that fits."""
    ports = tmp_path / "ports"
    ports.write_text("50000\t50007\n")
    monkeypatch.setattr(server_address, "PORT_RANGE", ports)
    address = Address.parse(url)
    preflight.check_ports(address, n_addresses, users, "--users")
    with pytest.raises(ConfigError) as refused:
        preflight.check_ports(address, n_addresses, users + 1, "--users")
    assert str(refused.value) == (
        f"this machine can open {users} connections to {address.host} (local ports 50000 to 50007) "
        f"and the load needs {users + 1}: expected a port for each; try "
        f"`sysctl -w net.ipv4.ip_local_port_range='1024 65535'`, or --users {users}."
    )
