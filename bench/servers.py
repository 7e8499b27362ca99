"""Servers that know what they sent: the paced one in C, and the embedded engine, paced."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from namespaces import LOOPBACK
from sent import Sent, from_bytes, from_json

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.engine.server import ServingOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE: Final = Path(__file__).parent
BUILD: Final = HERE / "build"  # ignored by git
FIRST_MS: Final = 100
PACED: Final = ["paced_server.c", "paced_http.c", "paced_pace.c", "paced_frames.c"]
FETCH: Final = """\
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1]) as answer:
    sys.stdout.buffer.write(answer.read())
"""
SOURCES: Final = {
    "c_client": ["c_client.c"],
    "c_client_tls": ["c_client.c", "-DWITH_TLS", "-lssl", "-lcrypto"],
    "paced_server": PACED,
    "paced_server_tls": [*PACED, "-DWITH_TLS", "-lssl", "-lcrypto"],
}


@dataclass(frozen=True, slots=True)
class Pace:
    """What a server sends, and to how many at once it starts together (0: each by itself)."""

    gap_ms: float = 20.0
    per_event: int = 1
    hold: int = 0


def build(name: str) -> Path:
    """The compiled program. Raises CalledProcessError where the compiler or a header is missing."""
    BUILD.mkdir(exist_ok=True)
    program = BUILD / name
    newest = max(path.stat().st_mtime for path in HERE.glob("*.[ch]"))
    if not program.exists() or program.stat().st_mtime < newest:
        # Another process may build the same one: it never sees a part of it.
        whole = program.with_name(f"{name}.{os.getpid()}")
        command = ["cc", "-O2", "-Wall", "-Wextra", "-o", str(whole), *SOURCES[name]]
        subprocess.run(command, cwd=HERE, check=True, capture_output=True)
        whole.replace(program)
    return program


@dataclass(frozen=True, slots=True)
class Server:
    """One that runs."""

    url: str
    pid: int
    binary: bool  # how it tells what it sent
    oracles: tuple[str, ...] = ()  # of its processes, where it has several
    inside: tuple[str, ...] = ()  # what goes before a command on its host, where that is another

    @property
    def is_tls(self) -> bool:
        """Whether it speaks TLS, with a certificate of our own making."""
        return self.url.startswith("https:")

    @property
    def port(self) -> int:
        """Of its address."""
        return int(self.url.rpartition(":")[2])

    def sent(self, tokens: int) -> Sent:
        """Of the requests that asked for so many tokens and got them: no probes."""
        read = from_bytes if self.binary else from_json
        urls = [f"{url}/oracle" for url in self.oracles or (self.url,)]
        rows = [row for url in urls for row in read(self._fetched(url))]
        return Sent.of(rows, tokens)

    def _fetched(self, url: str) -> bytes:
        """A body, asked for on the server's own host."""
        if not self.inside:
            return fetch(url)
        command = [*self.inside, sys.executable, "-c", FETCH, url]
        return subprocess.run(command, check=True, capture_output=True).stdout


def fetch(url: str) -> bytes:
    """A body; certificates of our own making are not verified."""
    import ssl  # noqa: PLC0415 - only here

    context = ssl._create_unverified_context() if url.startswith("https") else None  # noqa: S323
    with urllib.request.urlopen(url, context=context) as answer:
        return answer.read()


@contextlib.contextmanager
def paced(
    pace: Pace,
    certificate: Path | None = None,
    processes: int = 1,
    address: str = LOOPBACK,
    inside: tuple[str, ...] = (),
) -> Iterator[Server]:
    """The C server, as long as this lasts. `inside`: as `Server` has it."""
    program = build("paced_server_tls" if certificate else "paced_server")
    flags = [
        "--first-ms",
        FIRST_MS,
        "--gap-ms",
        pace.gap_ms,
        "--tokens-per-event",
        pace.per_event,
        "--hold",
        pace.hold,
        "--processes",
        processes,
        "--address",
        address,
    ]
    if certificate:
        flags += ["--certificate", certificate]
    with _running([*inside, program, *flags]) as process:
        scheme = "https" if certificate else "http"
        ports = process.stdout.readline().split()
        url, *oracles = (f"{scheme}://{address}:{int(port)}" for port in ports)
        yield Server(url, process.pid, binary=True, oracles=tuple(oracles), inside=inside)


@contextlib.contextmanager
def _running(command: Sequence[object]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def engine(pace: Pace) -> Iterator[Server]:
    """The embedded engine with the same pace (its own bursts only: it holds nobody back)."""
    config = EngineConfig(
        max_num_seqs=4096, max_num_batched_tokens=8192, stream_interval=pace.per_event
    )
    serving = ServingOptions(
        served_name="bench", first_ns=FIRST_MS * 10**6, pace_ns=int(pace.gap_ms * 1e6)
    )
    with start_engine(config, serving=serving) as running:
        yield Server(running.url, running.pid, binary=False)
