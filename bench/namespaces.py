"""Several hosts on one machine: network namespaces, joined by cables of their own.

A master, a server, and hosts of workers. Each worker host has a cable to the master and another one
to the server, so that one can be cut without the other. A cable is a veth pair alone, without a
bridge: not every kernel has one. It takes root and iproute2; `Hosts(apart=False)` puts all of them
on the loopback instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

from harness.server.address import LOOPBACK, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HERE: Final = Path(__file__).parent
TOP: Final = HERE.parent
MASTER, SERVER = "m", "s"
WORKERS: Final = ("w0", "w1")
MASTERS_NET, SERVERS_NET = "10.77.0", "10.78.0"
MASTERS_PLACE: Final = 9  # in the server's net
LOCUSTFILE: Final = HERE / "host_locustfile.py"  # of a worker that does not see the master's folder


class Hosts:
    """Where processes run. `apart`: each host in a network namespace of its own."""

    def __init__(self, *, apart: bool, workers: Sequence[str] = WORKERS) -> None:
        self.apart = apart
        self.workers = tuple(workers)
        self._name = f"vh{uuid4().hex[:8]}"
        self.master = f"{MASTERS_NET}.1" if apart else LOOPBACK
        self.server = f"{SERVERS_NET}.1" if apart else LOOPBACK
        self.master_port = free_port()

    def __enter__(self) -> Self:
        if self.apart:
            try:
                self._build()
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._names if self.apart else ():
            subprocess.run(
                ["ip", "netns", "del", self._of(host)],  # noqa: S607 - the system's
                check=False,
                stderr=subprocess.DEVNULL,
            )

    @property
    def _names(self) -> tuple[str, ...]:
        return (MASTER, SERVER, *self.workers)

    def _build(self) -> None:
        for host in self._names:
            _ip("netns", "add", self._of(host))
            self._in(host, "link", "set", "lo", "up")
        for place, host in enumerate(self.workers, 2):
            self._link(host, MASTER, f"{MASTERS_NET}.{place}", self.master)
            self._link(host, SERVER, self.peer(host), self.server)
        self._link(MASTER, SERVER, f"{SERVERS_NET}.{MASTERS_PLACE}", self.server)

    def _of(self, host: str) -> str:
        return f"{self._name}{host}"

    def _in(self, host: str, *arguments: str) -> None:
        _ip("-n", self._of(host), *arguments)

    def _link(self, host: str, to: str, own: str, other: str) -> None:
        """A cable; the other end has the same address on each of its cables."""
        near, far = f"to-{to}", f"of-{host}"
        pair = ["type", "veth", "peer", "name", far, "netns", self._of(to)]
        _ip("link", "add", near, "netns", self._of(host), *pair)
        for at, device, local, remote in ((host, near, own, other), (to, far, other, own)):
            self._in(at, "address", "add", local, "peer", remote, "dev", device)
            self._in(at, "link", "set", device, "up")

    def cut(self, host: str, how: str = "down") -> None:
        """Between the host and the master; `up` mends it."""
        self._in(MASTER, "link", "set", f"of-{host}", how)

    def peer(self, host: str) -> str:
        """The address from which the server hears it."""
        return f"{SERVERS_NET}.{self.workers.index(host) + 2}" if self.apart else LOOPBACK

    def inside(self, host: str) -> tuple[str, ...]:
        """What goes before a command, so that it runs there."""
        return ("ip", "netns", "exec", self._of(host)) if self.apart else ()

    def start(self, host: str, *command: object, **popen: Any) -> subprocess.Popen[str]:
        """A process there: Python with these arguments."""
        words = [*self.inside(host), sys.executable, *map(str, command)]
        return subprocess.Popen(words, text=True, **popen)

    def locust(
        self, host: str, *arguments: object, env: Mapping[str, str] | None = None, **popen: Any
    ) -> subprocess.Popen[str]:
        """A process of Locust there, with this repository's harness."""
        path = f"{TOP}:{os.environ.get('PYTHONPATH', '')}"
        return self.start(
            host,
            "-m",
            "locust",
            *arguments,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            env=os.environ | (env or {}) | {"PYTHONPATH": path},
            **popen,
        )

    def locust_master(self, *arguments: object, **popen: Any) -> subprocess.Popen[str]:
        """The master of `locustfiles/chat.py`, without its page."""
        words = ["-f", "locustfiles/chat.py", "--master", "--headless", *arguments]
        port = ["--master-bind-port", self.master_port]
        return self.locust(MASTER, *words, *port, cwd=TOP, **popen)

    def locust_worker(
        self, host: str, ahead_ms: float, home: Path, **popen: Any
    ) -> subprocess.Popen[str]:
        """A worker with a disk (`home`) and a clock of its own: ahead of all others' by so much."""
        home.mkdir(parents=True)
        master = ["--master-host", self.master, "--master-port", self.master_port]
        words = ["-f", LOCUSTFILE, "--worker", *master]
        return self.locust(host, *words, env={"AHEAD_MS": str(ahead_ms)}, cwd=home, **popen)


def can_be_apart() -> bool:
    """Whether this process may make network namespaces."""
    if os.geteuid() or not shutil.which("ip"):
        return False
    try:
        with Hosts(apart=True) as hosts:
            subprocess.run([*hosts.inside(SERVER), "true"], check=True, capture_output=True)
            return True
    except subprocess.CalledProcessError:
        return False


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)  # noqa: S607 - the system's
