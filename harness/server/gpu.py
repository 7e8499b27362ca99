"""The GPUs that a server runs on: their properties and readings.

    --gpu-metrics local   this machine's GPUs, through NVML: those that the server's processes use
    --gpu-metrics URL     another machine's: URL of `vllm-harness exporter` or of a dcgm-exporter
    --gpu-metrics none    not read

The default is `local` for a server on this machine. A missing GPU is not an error:
`GpuReadings.why` has the reason.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from math import isnan, nan
from typing import TYPE_CHECKING, Any, Final, Protocol

import psutil

from harness.errors import ConfigError, ServerUnreachable
from harness.server.access import TargetAccess
from harness.server.address import parse_exporter_url
from harness.server.http_exchange import HttpConnection
from harness.server.nvml import NoGpu, NvmlGpus
from harness.server.server_processes import family_of
from harness.units import SECOND
from harness.wire.gpu_pages import engine_cpu_s, gpu_labels, gpu_samples

if TYPE_CHECKING:
    from harness.measure.records.samples import GpuSample, ServerSample
    from harness.server.address import Address

LOCAL: Final = "local"
NONE: Final = "none"
ANSWER_NS: Final = 5 * SECOND
UUID_LENGTH: Final = 12  # GPU-6fee9673: distinguishes GPUs, identifies no machine


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU. Unknown properties are "" or 0."""

    index: int
    name: str
    memory_mib: float
    driver: str
    uuid: str  # its beginning

    @classmethod
    def of(cls, labels: dict[str, Any]) -> GpuInfo:
        return cls(**labels | {"uuid": labels["uuid"][:UUID_LENGTH]})


class GpuSource(Protocol):
    """Where readings come from."""

    blocking: bool  # whether `read` blocks its thread: call it in another one

    def gpus(self) -> list[dict[str, Any]]:
        """Return index, name, memory_mib, driver and uuid of each GPU."""

    def read(self, at_ns: int) -> list[GpuSample]:
        """Return one sample per GPU; a figure that cannot be read is NaN."""

    def close(self) -> None:
        """Release the source."""


class ExportedGpus:
    """GPUs read from a dcgm-exporter or from our own exporter."""

    blocking = False  # sockets are gevent's: only the greenlet waits

    def __init__(self, access: TargetAccess) -> None:
        self._connection = HttpConnection(access)
        self.engine_cpu_s = nan  # of the engine cores, where our own exporter runs beside them

    def gpus(self) -> list[dict[str, Any]]:
        """Raises ServerUnreachable."""
        return gpu_labels(self._connection.fetch("/metrics").body)

    def read(self, at_ns: int) -> list[GpuSample]:
        """Return [] if the exporter does not answer."""
        try:
            page = self._connection.fetch("/metrics").body
        except ServerUnreachable:
            self.engine_cpu_s = nan
            return []
        self.engine_cpu_s = engine_cpu_s(page)
        return gpu_samples(page, at_ns)

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True, slots=True)
class GpuReadings:
    """The GPUs that were found; without a `source` none can be read, and `why` has the reason."""

    where: str  # local, none, or the exporter's URL
    found: tuple[GpuInfo, ...] = ()
    source: GpuSource | None = None
    why: str = ""

    def with_engine_cpu(self, sample: ServerSample) -> ServerSample:
        """Add the engine cores' CPU time where only an exporter on their machine knows it."""
        if not isinstance(self.source, ExportedGpus) or not isnan(sample.engine_cpu_s):
            return sample
        return replace(sample, engine_cpu_s=self.source.engine_cpu_s)

    def to_json(self) -> dict[str, Any]:
        return {"where": self.where, "gpus": [asdict(gpu) for gpu in self.found], "why": self.why}


def open_gpus(choice: str | None, server: Address | None) -> GpuReadings:
    """Open the GPUs of `choice`; `server` None: the embedded engine, which uses none.

    Raises ConfigError and ServerUnreachable for the URL of an exporter.
    """
    if choice is None:
        if server is None:
            return GpuReadings(NONE, why="no GPU here (the embedded engine needs none)")
        if not server.is_local:
            return GpuReadings(
                NONE, why="the server's GPUs are elsewhere (--gpu-metrics URL reads an exporter's)"
            )
    if choice == NONE:
        return GpuReadings(NONE, why="GPUs were not read (--gpu-metrics none)")
    if choice in (None, LOCAL):
        return local_gpus(server)
    return _exporter(str(choice))


def local_gpus(server: Address | None = None) -> GpuReadings:
    """Open this machine's GPUs, or of them those that a server on it uses."""
    users: set[int] = set()
    if server is not None and server.is_local:
        with suppress(psutil.Error):  # one of its processes ended meanwhile
            users = {process.pid for process in family_of(server.port)}
    try:
        source = NvmlGpus.open(users=users)
    except NoGpu as error:
        return GpuReadings(LOCAL, why=str(error))
    return GpuReadings(LOCAL, tuple(map(GpuInfo.of, source.gpus())), source)


def _exporter(url: str) -> GpuReadings:
    address = parse_exporter_url(url)
    source = ExportedGpus(TargetAccess(address, connect_ns=ANSWER_NS, answer_ns=ANSWER_NS))
    try:
        found = source.gpus()
    except ServerUnreachable as error:
        why = getattr(error.__cause__, "strerror", None) or error.__cause__
        raise ServerUnreachable(
            f"--gpu-metrics is {url}, which cannot be read ({why}): expected "
            "`vllm-harness exporter` or a dcgm-exporter there; "
            f"try `curl {address}/metrics`, or --gpu-metrics none."
        ) from error
    if not found:
        source.close()
        raise ConfigError(
            f"--gpu-metrics is {url}, which shows no GPU: expected `vllm-harness exporter` or a "
            "dcgm-exporter (series DCGM_FI_DEV_GPU_UTIL) beside the server; "
            f"try http://{address.host}:9400, or --gpu-metrics none."
        )
    return GpuReadings(str(address), tuple(map(GpuInfo.of, found)), source)
