"""The servers of a drill: those that it starts, and those that its file names.

Nothing else is ever touched: a process that a file names by pid is signaled, a container by name,
and only one that the drill started, or a container, is started again.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.errors import ConfigError, ServerUnreachable, closest, one_line
from harness.lifecycle.vllm_start import StartOptions, command_line, session_pids, started
from harness.server.address import LOOPBACK, Address, free_port

if TYPE_CHECKING:
    from harness.drill.plan import Drill

LOOPBACK_HOSTS: Final = (LOOPBACK, "localhost", "::1")
DOCKER: Final = {
    signal.SIGKILL: "kill",
    signal.SIGSTOP: "pause",
    signal.SIGCONT: "unpause",
}


@dataclass(slots=True)
class Server:
    """One replica. `run` starts it on its port and yields the pid of its session."""

    url: str
    run: Callable[[], AbstractContextManager[int]] | None = None  # None: somebody else's
    pid: int = -1  # of the session, or the one that the file names
    container: str = ""
    _running: ExitStack = field(default_factory=ExitStack)

    def send(self, number: signal.Signals) -> None:
        """A signal to all its processes; one that is gone already is no error."""
        if self.container:
            docker(DOCKER[number], self.container)
            return
        pids = [self.pid]
        # The engine and the API servers of a vLLM are processes of their own.
        if self.run is not None:
            pids = session_pids(self.pid)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def start(self) -> None:
        """Start it, cold; what the drill started is ready then. Raises ServerUnreachable."""
        if self.container:
            docker("start", self.container)
        elif self.run is not None:
            # A signal may have killed it, which ends nothing here: its log is still open.
            self.stop()
            self.pid = self._running.enter_context(self.run())

    def stop(self) -> None:
        """End what the drill started; safe to repeat."""
        self._running.close()


def docker(command: str, container: str) -> None:
    """One of its commands. Raises ServerUnreachable, but not where the container is dead."""
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command, and a container that the file names
            ["docker", command, container],  # noqa: S607 - as named
            check=False,
            capture_output=True,
            text=True,
        )
        wrong = done.stderr.strip() if done.returncode else ""
    except OSError as error:
        wrong = f"docker cannot be run: {error.strerror}"
    if wrong and " is not " not in wrong:  # running, or paused
        raise ServerUnreachable(
            f"`docker {command} {container}` fails ({one_line(wrong)}): expected a container that "
            "this machine has; try `docker ps --all`, and DOCKER_HOST."
        )


def check_servers(drill: Drill, allowed: Sequence[str], start: StartOptions) -> None:
    """What the file names may be loaded and acted on. Raises ConfigError."""
    servers = drill.servers
    for url in servers.get("urls", ()):
        host = Address.parse(url).host
        if host not in (*LOOPBACK_HOSTS, *allowed):
            raise ConfigError(
                f"the drill loads {host}, which is not this machine: expected --allow-host {host}, "
                "as a drill breaks what it loads; try it on a staging deployment first."
            )
    for pid in servers.get("pids", ()):
        if not _runs(pid):
            raise ConfigError(f"no process has the pid {pid!r}: expected one that runs; try `ps`.")
    if servers.get("engine"):
        engine_of(servers["engine"])
    if "vllm" in servers:
        command_line(start, (), 0)  # raises


def _runs(pid: object) -> bool:
    """Whether that is a process; process 1 is the machine itself."""
    if not isinstance(pid, int) or pid <= 1:
        return False
    return Path(f"/proc/{pid}").exists()


def engine_of(flags: dict[str, Any]) -> EngineConfig:
    """The embedded engine with vLLM's names of flags. Raises ConfigError."""
    known = EngineConfig.__dataclass_fields__
    given = {key.replace("-", "_"): value for key, value in flags.items()}
    for key, value in given.items():
        if key not in known:
            raise ConfigError(
                f"[servers] engine has {key!r}: expected fields of the embedded engine; "
                f"try {closest(key, known, 'max_num_seqs')}."
            )
        default = known[key].default
        kind = (int, float) if isinstance(default, float) else type(default)
        is_negative = isinstance(value, int | float) and value < 0
        if is_negative or not isinstance(value, kind):
            raise ConfigError(
                f"[servers] engine has {key} = {value!r}: expected a value as its default is; "
                f"try {key} = {default!r}."
            )
    return EngineConfig(**given)


@contextmanager
def running_servers(
    drill: Drill, start: StartOptions, logs: Path, tell: Callable[[str], object]
) -> Iterator[list[Server]]:
    """All replicas, ready; those that the drill started end with the block."""
    replicas = [*_given_servers(drill), *_own_servers(drill, start, logs)]
    try:
        for number, server in enumerate(replicas, 1):
            server.start()
            if server.run is not None:
                tell(f"replica {number} serves at {server.url}")
        yield replicas
    finally:
        for server in replicas:
            server.stop()


def _given_servers(drill: Drill) -> list[Server]:
    """Those that the file names by URL. Raises ServerUnreachable if a container is not there."""
    containers = drill.servers.get("containers", ())
    for container in containers:
        docker("inspect", str(container))
    urls = drill.servers.get("urls", ())
    pids = drill.servers.get("pids") or repeat(-1)
    replicas = zip(urls, pids, containers or repeat(""), strict=False)
    servers = []
    for url, pid, container in replicas:
        servers.append(Server(url, pid=pid, container=str(container)))
    return servers


def _own_servers(drill: Drill, start: StartOptions, logs: Path) -> list[Server]:
    """Those that the drill starts, on free ports: embedded engines, or vLLM."""
    servers = drill.servers
    own = []
    if "engines" in servers:
        config = engine_of(servers.get("engine", {}))
        for number in range(servers["engines"]):
            port = free_port()
            run = partial(_run_engine, replace(config, seed=number), port)
            own.append(Server(f"http://{LOOPBACK}:{port}", run))
    args = tuple(shlex.split(servers.get("args", "")))
    for number in range(1, servers.get("vllm", 0) + 1):
        port = free_port()
        run_vllm = partial(_run_vllm, start, args, logs / f"vllm-{number}.log", port)
        own.append(Server(f"http://{LOOPBACK}:{port}", run_vllm))
    return own


@contextmanager
def _run_engine(config: EngineConfig, port: int) -> Iterator[int]:
    with start_engine(config, port) as engine:
        yield engine.pid


@contextmanager
def _run_vllm(start: StartOptions, args: tuple[str, ...], log: Path, port: int) -> Iterator[int]:
    with started(start, args, log=log, port=port) as vllm:
        yield vllm.pid
