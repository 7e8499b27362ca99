"""The harness and the C client, each run as a whole, as its users run it.

Each takes a server and a `Load` and gives back what it read and who used how much CPU (`Read`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from servers import build
from watch import Watch

from harness.errors import MeasurementInvalid
from harness.load.plan import plan
from harness.load.workloads import WORKLOADS
from harness.metrics.metrics import itl, ttft
from harness.records import names
from harness.records.folder_reader import read_run
from harness.records.record_table import OK, concat_tables
from harness.senders.drive_options import DriveOptions, request_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from servers import Server

    from harness.records.record_table import RecordTable

    Values = NDArray[np.number]

SPREAD_S: Final = 0.3  # over which users begin where they do not begin together
STREAMS_PER_CORE: Final = 2048
LIMIT_S: Final = 400
PROMPT_TOKENS: Final = 256
SENDER_HEADER: Final = "X-Sender: {request}"  # so that the server's log knows each request


@dataclass(frozen=True, slots=True)
class Load:
    """So many streams at once, each `rounds` requests of `tokens` tokens one after the other."""

    streams: int
    rounds: int
    tokens: int = 128
    api: str = "chat"
    burst: bool = False

    @property
    def processes(self) -> int:
        """Of a client or a server in C: one reads or sends as many streams on a core of its own."""
        return -(-self.streams // STREAMS_PER_CORE)

    @property
    def requests(self) -> int:
        """In all."""
        return self.streams * self.rounds


@dataclass(slots=True)
class Read:
    """What a client read, in ns; `table` where it keeps records, `note` when something is wrong.

    `ttft_ns` is in the order in which the requests began.
    """

    watch: Watch
    ttft_ns: Values | None = None
    itl_ns: Values | None = None
    ttft_bounds: tuple[Values, Values] | None = None  # where it says itself how sure it is
    itl_bounds: tuple[Values, Values] | None = None
    table: RecordTable | None = None
    cpu_s: float = -1.0  # of the whole client, where it says so itself
    note: str = ""


def watched(
    server: Server,
    command: Sequence[object],
    env: Mapping[str, str] | None = None,
    name: str = "client",
) -> tuple[subprocess.CompletedProcess[str], Watch]:
    """Run a client to its end under a watch, its first process called `name` there."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            [*map(str, command)],
            stdout=out,
            stderr=err,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
        )
        watch = Watch({process.pid: name, server.pid: "server"})
        watch.start()
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        finally:
            watch.close()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read()), watch


def note_of(done: subprocess.CompletedProcess[str]) -> str:
    """The last line it said before it failed; ours ends with 5 where it does not trust itself."""
    if done.returncode == MeasurementInvalid.exit_code:
        return "exit 5: its own check refuses these figures"
    said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
    return f"exit {done.returncode}: {said[:200]}" if done.returncode else ""


def harness(server: Server, load: Load, folder: Path) -> Read:
    """`vllm-harness run`: worker, decoder, master, records, report."""
    out = folder / "run"
    done, watch = watched(
        server,
        [
            Path(sys.executable).with_name("vllm-harness"),
            "run",
            server.url,
            "--users",
            load.streams,
            "--requests",
            load.requests,
            "--workload",
            "fixed",
            "--api",
            load.api,
            "--prompt-tokens",
            PROMPT_TOKENS,
            "--output-tokens",
            load.tokens,
            "--quiet",
            "--insecure",
            "--header",
            SENDER_HEADER,
            "--out",
            out,
        ],
        name="master",
    )
    read = Read(watch, note=note_of(done))
    if (out / names.RESULT).exists():
        table = concat_tables(list(read_run(out).chunks()))
        read.table = table = table.select(table.outcome == OK)
        in_order = np.argsort(table.sent_ns, kind="stable")
        first, gap = ttft(table), itl(table)
        read.ttft_ns, read.ttft_bounds = first.ns[in_order], (first.lo_ns, first.hi_ns)
        read.itl_ns, read.itl_bounds = gap.ns, (gap.lo_ns, gap.hi_ns)
    return read


def c_client(server: Server, load: Load, folder: Path) -> Read:
    """The floor: reads, keeps the stamps, parses nothing."""
    file = folder / "request"
    file.write_bytes(_request(server, load))
    done, watch = watched(
        server,
        [
            build("c_client_tls" if server.is_tls else "c_client"),
            server.port,
            load.streams,
            load.requests,
            file,
            load.tokens,
            0 if load.burst else SPREAD_S * 1e3,
            load.processes,
        ],
    )
    read = Read(watch, note=note_of(done))
    if not done.returncode:
        user, system = done.stdout.split()
        read.cpu_s = (float(user) + float(system)) * load.requests * load.tokens / 1e6
    return read


def _request(server: Server, load: Load) -> bytes:
    """What the harness itself would send."""
    sized = WORKLOADS["fixed"].through(load.api).sized(PROMPT_TOKENS, load.tokens)
    options = DriveOptions(server.url, "bench", sized)
    return request_bytes(options, options.access(), load.api, plan(sized, 1, 0, 0))
