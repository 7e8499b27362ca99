"""The GPUs that a server runs on: what they are, and a reading of each when asked.

    --gpu-metrics local   this machine's, through NVML
    --gpu-metrics URL     another machine's: of `vllm-harness exporter` there, or a dcgm-exporter
    --gpu-metrics none    not read

Without a choice it is `local` for a server on this machine. No GPU is no error: `Gpus.why` says it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import isnan, nan
from typing import TYPE_CHECKING, Any, Final, Protocol

from harness.errors import ConfigError, ServerUnreachable
from harness.server.access import Access
from harness.server.address import exporter_at
from harness.server.exchange import Line
from harness.server.nvml import NoGpu, NvmlGpus
from harness.units import SECOND
from harness.wire import dcgm, own_exporter

if TYPE_CHECKING:
    from harness.measure.samples import GpuSample, ServerSample
    from harness.server.address import Address

LOCAL: Final = "local"
NONE: Final = "none"
ANSWER_NS: Final = 5 * SECOND
UUID_LENGTH: Final = 12  # GPU-6fee9673: tells GPUs apart, names no machine


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. What is not said is "" or 0."""

    index: int
    name: str
    memory_mib: float
    driver: str
    uuid: str  # its beginning

    @classmethod
    def of(cls, said: dict[str, Any]) -> Gpu:
        """From what a source says."""
        return cls(**said | {"uuid": said["uuid"][:UUID_LENGTH]})


class GpuSource(Protocol):
    """Where readings come from."""

    blocking: bool  # whether `read` holds up its thread: ask in another one

    def gpus(self) -> list[dict[str, Any]]:
        """What there is: index, name, memory_mib, driver, uuid."""

    def read(self, at_ns: int) -> list[GpuSample]:
        """One reading of each; a figure that cannot be read is NaN."""

    def close(self) -> None:
        """No reading comes after."""


class ExportedGpus:
    """Those of another machine, or of this one, behind a dcgm-exporter or an exporter of ours."""

    blocking = False  # it waits as any greenlet does

    def __init__(self, access: Access) -> None:
        """Nothing is asked yet."""
        self._line = Line(access)
        self.engine_cpu_s = nan  # of the engine cores beside an exporter of ours

    def gpus(self) -> list[dict[str, Any]]:
        """As the exporter labels them. Raises ServerUnreachable."""
        page = self._line.ask("/metrics").body
        return dcgm.gpu_labels(page) or own_exporter.gpu_labels(page)

    def read(self, at_ns: int) -> list[GpuSample]:
        """[] when the exporter does not answer."""
        try:
            page = self._line.ask("/metrics").body
        except ServerUnreachable:
            self.engine_cpu_s = nan
            return []
        self.engine_cpu_s = own_exporter.engine_cpu_s(page)
        return dcgm.gpu_samples(page, at_ns) or own_exporter.gpu_samples(page, at_ns)

    def close(self) -> None:
        """Hang up."""
        self._line.close()


@dataclass(frozen=True, slots=True)
class Gpus:
    """What was found; `source` None: nothing to read, and `why`."""

    where: str  # local, none, or the exporter's URL
    found: tuple[Gpu, ...] = ()
    source: GpuSource | None = None
    why: str = ""

    def told(self, sample: ServerSample) -> ServerSample:
        """The sample with the engine cores' CPU, where only an exporter beside them says it."""
        if not isinstance(self.source, ExportedGpus) or not isnan(sample.engine_cpu_s):
            return sample
        return replace(sample, engine_cpu_s=self.source.engine_cpu_s)

    def to_json(self) -> dict[str, Any]:
        """For run.json."""
        return {"where": self.where, "gpus": [asdict(gpu) for gpu in self.found], "why": self.why}


def open_gpus(choice: str | None, server: Address | None) -> Gpus:
    """Those of `choice`; `server` None: the embedded engine, which uses none.

    Raises ConfigError and ServerUnreachable for an exporter that was asked for.
    """
    if choice is None:
        if server is None:
            return Gpus(NONE, why="no GPU here (the embedded engine needs none)")
        if not server.here:
            return Gpus(
                NONE, why="the server's GPUs are elsewhere (--gpu-metrics URL reads an exporter's)"
            )
    if choice == NONE:
        return Gpus(NONE, why="GPUs were not read (--gpu-metrics none)")
    if choice in (None, LOCAL):
        return local_gpus()
    return _exporter(str(choice))


def local_gpus() -> Gpus:
    """This machine's."""
    try:
        source = NvmlGpus.open()
    except NoGpu as no:
        return Gpus(LOCAL, why=str(no))
    return Gpus(LOCAL, tuple(map(Gpu.of, source.gpus())), source)


def _exporter(url: str) -> Gpus:
    address = exporter_at(url)
    source = ExportedGpus(Access(address, connect_ns=ANSWER_NS, answer_ns=ANSWER_NS))
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
    return Gpus(str(address), tuple(map(Gpu.of, found)), source)
