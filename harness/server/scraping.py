"""Scrapes /metrics, and reads the CPU time of the processes on this host, which it does not have.

vLLM names its processes: `VLLM::EngineCore`, one for each data-parallel rank, and with several API
servers `VLLM::APIServer_0` and so on (a single API server is the process that was started). The
front end in Rust is one process, `vllm-rs frontend`, whose threads run in parallel; its /metrics do
not have its CPU time. The processes of a target are the listener on its port, the listener's
ancestors that run vLLM too, and all their descendants. On another host, or of another user, they
are not visible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from http import HTTPStatus
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from harness.errors import ServerUnreachable, one_line
from harness.server.http_exchange import MAX_QUOTED_CHARS, HttpAnswer, HttpConnection
from harness.wire.kv_cache import models_on
from harness.wire.vllm_metrics import server_sample

if TYPE_CHECKING:
    from harness.records.samples import ServerSample
    from harness.server.access import TargetAccess
    from harness.server.address import Address


def read_metrics(
    access: TargetAccess, answer: HttpAnswer, at_ns: int, took_ns: float = nan, model: str = ""
) -> ServerSample | None:
    """Return vLLM's metrics of a model in an answer, None without any; "": of all models.

    Raises ServerUnreachable: malformed.
    """
    try:
        return server_sample(answer.body, at_ns, took_ns, model)
    except ValueError as error:
        page = f"{access.address}/metrics"
        raise ServerUnreachable(
            f"{page} cannot be read ({one_line(str(error))}): expected Prometheus' text format as "
            f"vLLM writes it; try `curl {page}`."
        ) from error


def without_metrics(where: str, answer: HttpAnswer, model: str = "") -> str:
    """What a page without any metric of vLLM's, or of that model, says."""
    models = models_on(answer.body) if answer.status == HTTPStatus.OK else []
    if not models:
        return f"{where}/metrics answers {answer.status} without a metric of vLLM's"
    others = one_line(", ".join(models), MAX_QUOTED_CHARS)
    return f"{where}/metrics has the metrics of several models ({others}) and none of {model}"


class MetricsScraper:
    """Call it for one scrape; it keeps one connection, which is cheaper for the server."""

    def __init__(self, access: TargetAccess, now_ns: Callable[[], int], model: str = "") -> None:
        """`now_ns`: the clock that samples are stamped with; `model`: as `read_metrics` has it."""
        self._access = access
        self._connection = HttpConnection(access)
        self._processes = ServerProcesses(access.address)
        self._now_ns = now_ns
        self._model = model

    def __call__(self) -> tuple[HttpAnswer, ServerSample | None, int]:
        """Return an answer, vLLM's metrics in it, if any, and how long it took, in ns.

        The sample is stamped with the middle of the exchange. Raises ServerUnreachable.
        """
        start_ns = self._now_ns()
        answer = self._connection.fetch("/metrics")
        took_ns = self._now_ns() - start_ns
        sample = None
        if answer.status == HTTPStatus.OK:
            middle_ns = start_ns + took_ns // 2
            sample = read_metrics(self._access, answer, middle_ns, took_ns, self._model)
        if sample is not None:
            sample = self._processes.with_cpu_times(sample)
        return answer, sample, took_ns

    def close(self) -> None:
        self._connection.close()


ENGINE: Final = "VLLM::EngineCore"
API_SERVER: Final = "VLLM::APIServer"
RUST_FRONT_END: Final = "vllm-rs"
MAX_SEARCHES: Final = 3  # attempts to find the processes before giving up


class ServerProcesses:
    """Finds the processes once, and again when one of them has exited."""

    def __init__(self, address: Address) -> None:
        self.port = address.port
        self._searches_left = MAX_SEARCHES if address.is_local else 0
        self._engines: list[psutil.Process] = []
        self._api_servers: list[psutil.Process] = []
        self._threads = math.nan

    def with_cpu_times(self, sample: ServerSample) -> ServerSample:
        """Add the CPU seconds of the server's processes to a sample, as far as they are known."""
        # A search walks over all sockets and processes of this host: not at each scrape of a server
        # whose processes cannot be seen.
        if not self._engines and self._searches_left:
            self._searches_left -= 1
            self._find()
        if not self._engines:
            return sample
        try:
            engine_s = total_cpu_s(self._engines)
            all_api_s = total_cpu_s(self._api_servers)
        except psutil.Error:  # exited, or of another user: search again
            self._engines = []
            self._searches_left = MAX_SEARCHES
            return sample
        api_s = sample.api_cpu_s
        if self._api_servers:
            # Of several on one port, a scrape reaches any one and sees only its counter.
            api_s = all_api_s / len(self._api_servers)
        return replace(sample, engine_cpu_s=engine_s, api_cpu_s=api_s, api_threads=self._threads)

    def _find(self) -> None:
        try:
            family = family_of(self.port)
            engines = processes_named(family, ENGINE)
            api_servers = processes_named(family, API_SERVER)
            rust = processes_named(family, RUST_FRONT_END)
            if rust:
                api_servers = rust
                self._threads = len(rust[0].cpu_affinity())
        except psutil.Error:  # one of them is exiting
            return
        self._engines = engines
        self._api_servers = api_servers


def family_of(port: int) -> list[psutil.Process]:
    """Return the listener on the port, vLLM above it, and all below. Raises psutil.Error."""
    listeners = set()
    for connection in psutil.net_connections("tcp"):
        listens = connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
        if listens and connection.pid:
            listeners.add(connection.pid)
    family = []
    for head in {_head(psutil.Process(pid)) for pid in listeners}:
        family += [head, *head.children(recursive=True)]
    return family


def _head(process: psutil.Process) -> psutil.Process:
    """Return the topmost ancestor that runs vLLM."""
    above = process.parent()
    while above is not None and _is_vllm(above.cmdline()):
        process = above
        above = process.parent()
    return process


def _is_vllm(command: Sequence[str]) -> bool:
    # `vllm serve`, `python -m vllm...` or one of vLLM's own process names, but not a shell whose
    # command line mentions vllm.
    program, first, second, *_ = [*command, "", "", ""]
    module = second if first == "-m" else Path(first).name
    return program.startswith("VLLM::") or module.split(".")[0] == "vllm"


def processes_named(processes: Sequence[psutil.Process], name: str) -> list[psutil.Process]:
    """Return the processes whose name begins with one of vLLM's names. Raises psutil.Error."""
    return [process for process in processes if _program(process).startswith(name)]


def _program(process: psutil.Process) -> str:
    command = process.cmdline()
    return Path(command[0]).name if command else ""


def total_cpu_s(processes: Sequence[psutil.Process]) -> float:
    """Return the sum of user and system time; NaN without a process. Raises psutil.Error."""
    if not processes:
        return math.nan
    times = [process.cpu_times() for process in processes]
    return math.fsum(t.user + t.system for t in times)
