"""The CPU time of a vLLM's processes, from this host's process table: no /metrics page tells it.

vLLM names its processes: `VLLM::EngineCore`, one for each data-parallel rank, and with several API
servers `VLLM::APIServer_0` and so on (one API server is the process that was started). Those of a
target are its listener's family: who listens on the port, the ancestors that run vLLM too, and
their descendants. Elsewhere, or of another user, they are not seen, and nothing is said.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.samples import ServerSample
    from harness.server.address import Address

ENGINE: Final = "VLLM::EngineCore"
FRONT: Final = "VLLM::APIServer"
SEARCHES: Final = 3  # for the processes; then there are none here


class ServerProcesses:
    """Finds them once, and again when one has gone."""

    def __init__(self, address: Address) -> None:
        """`address`: where the target listens."""
        self.port = address.port
        self._left = SEARCHES if address.here else 0
        self._engines: list[psutil.Process] = []
        self._fronts: list[psutil.Process] = []

    def told(self, sample: ServerSample) -> ServerSample:
        """The sample with what this host says of the server's processes, seconds of CPU."""
        if not self._engines and self._left:
            self._left -= 1
            self._find()
        if not self._engines:
            return sample
        try:
            engine_s, front_s = cpu_s(self._engines), cpu_s(self._fronts)
        except psutil.Error:  # gone, or somebody else's: it is looked for anew
            self._engines, self._left = [], SEARCHES
            return sample
        # several API servers' own counters cannot be added up by a scrape of one of them
        front_s = front_s / len(self._fronts) if self._fronts else sample.api_cpu_s
        return replace(sample, engine_cpu_s=engine_s, api_cpu_s=front_s)

    def _find(self) -> None:
        try:
            family = family_of(self.port)
        except psutil.Error:
            return
        self._engines = named(family, ENGINE)
        self._fronts = named(family, FRONT)


def family_of(port: int) -> list[psutil.Process]:
    """Who listens on the port, the vLLM above it, and all below. Raises psutil.Error."""
    listeners = {
        c.pid
        for c in psutil.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr.port == port and c.pid
    }
    heads = {_head(psutil.Process(pid)) for pid in listeners}
    return [process for head in heads for process in (head, *head.children(recursive=True))]


def _head(process: psutil.Process) -> psutil.Process:
    """The first of its ancestors that runs vLLM."""
    above = process.parent()
    while above is not None and _is_vllm(above.cmdline()):
        process, above = above, above.parent()
    return process


def _is_vllm(command: Sequence[str]) -> bool:
    """`vllm serve`, `python -m vllm...` or one of vLLM's own names; not a shell that says vllm."""
    name, *rest = [*command, "", "", ""][:3]
    module = rest[1] if rest[0] == "-m" else Path(rest[0]).name
    return name.startswith("VLLM::") or module.split(".")[0] == "vllm"


def named(processes: Sequence[psutil.Process], name: str) -> list[psutil.Process]:
    """Those that carry one of vLLM's names."""
    return [p for p in processes if (p.cmdline() or [""])[0].startswith(name)]


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    """User and system time of all of them; NaN of none. Raises psutil.Error."""
    if not processes:
        return math.nan
    times = [process.cpu_times() for process in processes]
    return math.fsum(t.user + t.system for t in times)
