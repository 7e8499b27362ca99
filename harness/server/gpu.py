"""The GPUs that a server runs on: their properties and readings.

    --gpu-metrics local   this machine's GPUs, through NVML: those that the server's processes use
    --gpu-metrics URL     another machine's: URL of `vllm-harness exporter` or of a dcgm-exporter
    --gpu-metrics none    not read

The default is `local` for a server on this machine. A missing GPU is not an error:
`GpuReadings.why` has the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from math import isnan, nan
from typing import Any, Final, NamedTuple

import psutil
import pynvml

from harness.errors import ConfigError, HarnessError, ServerUnreachable
from harness.records.samples import GpuSample, ServerSample
from harness.server.access import TargetAccess
from harness.server.address import Address, parse_exporter_url
from harness.server.http_exchange import HttpConnection
from harness.server.scraping import family_of
from harness.units import SECOND
from harness.wire.gpu_pages import GpuKey, engine_cpu_s, gpu_labels, gpu_samples, is_own_exporter
from harness.wire.gpu_series import MIB, throttle_reasons

UNSIGNED_INT: Final = 1  # NVML's type of a counter that wraps at 4 GiB


class NoGpu(Exception):  # noqa: N818 - a finding, not an error
    """No GPU can be read; the message has the reason."""


# Measured on an H200: a reading takes some milliseconds, mostly for the energy counter. NVML's own
# PCIe throughput takes 21 ms per direction and covers only those 21 ms (it reported 8 and 902 MB/s
# under a steady load of 216 MB/s), so ours is computed from the byte counters.


class PcieBytes(NamedTuple):
    """What a GPU has counted by an instant; the counters begin again at `wrap`."""

    at_ns: int
    received: int
    sent: int
    wrap: int


class NvmlGpus:
    """This machine's GPUs, through NVIDIA's own `pynvml`. Use `open`."""

    blocking = True  # calls into a C library: `read` belongs into another thread

    def __init__(self, nvml: Any, handles: dict[int, Any], *, of_server: bool = False) -> None:
        """`nvml` has pynvml's functions, `handles` are its devices by their index.

        `of_server`: these are the GPUs of one server, not all of the machine.
        """
        self.of_server = of_server
        self._nvml = nvml
        self._handles = handles
        self._bytes: dict[int, PcieBytes] = {}  # at the last reading, by index

    @classmethod
    def open(
        cls, nvml: Any = pynvml, users: Collection[int] = (), visible: Collection[str] = ()
    ) -> NvmlGpus:
        """Those that the processes `users` compute on; all, if none of them is seen on any.

        A container may hide them: then those that they call `visible`, by index or UUID. Raises
        NoGpu.
        """
        try:
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
            handles = {index: nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)}
        except nvml.NVMLError as error:
            raise NoGpu(f"no GPU here ({error})") from None
        if not handles:
            nvml.nvmlShutdown()
            raise NoGpu("no GPU here (NVIDIA's driver sees none)")
        used = {i: handle for i, handle in handles.items() if _used_by(nvml, handle, users)}
        if not used:
            used = {i: handle for i, handle in handles.items() if _named(nvml, i, handle, visible)}
        return cls(nvml, used or handles, of_server=bool(used) or len(handles) == 1)

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def gpus(self) -> list[dict[str, Any]]:
        nvml = self._nvml
        driver = nvml.nvmlSystemGetDriverVersion()
        return [
            {
                "index": index,
                "name": nvml.nvmlDeviceGetName(handle),
                "driver": driver,
                "memory_mib": self._memory(handle, "total"),
                "uuid": nvml.nvmlDeviceGetUUID(handle),
            }
            for index, handle in self._handles.items()
        ]

    def read(self, at_ns: int) -> list[GpuSample]:
        """Return one sample per GPU; NaN for what a GPU, its driver or a container hides."""
        return [self._read(index, handle, at_ns) for index, handle in self._handles.items()]

    def _read(self, index: int, handle: Any, at_ns: int) -> GpuSample:
        nvml = self._nvml
        number = self._number
        received_mb_per_s, sent_mb_per_s = self._pcie_mb_per_s(index, handle, at_ns)
        power_mw = number(nvml.nvmlDeviceGetPowerUsage, handle)
        energy_mj = number(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        clock = nvml.nvmlDeviceGetClockInfo
        temperature = nvml.nvmlDeviceGetTemperature
        return GpuSample(
            at_ns,
            index,
            util_pct=number(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            memory_util_pct=number(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory),
            memory_used_mib=self._memory(handle, "used"),
            power_w=power_mw / 1e3,
            energy_j=energy_mj / 1e3,
            sm_clock_mhz=number(clock, handle, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=number(clock, handle, nvml.NVML_CLOCK_MEM),
            temperature_c=number(temperature, handle, nvml.NVML_TEMPERATURE_GPU),
            pcie_rx_mb_per_s=received_mb_per_s,
            pcie_tx_mb_per_s=sent_mb_per_s,
            throttled=self._throttled(handle),
        )

    def _number(self, query: Callable[..., float], *arguments: Any) -> float:
        try:
            return float(query(*arguments))
        except self._nvml.NVMLError:
            return nan

    def _memory(self, handle: Any, part: str) -> float:
        def query() -> float:
            memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            return float(getattr(memory, part))

        return self._number(query) / MIB

    def _throttled(self, handle: Any) -> tuple[str, ...] | None:
        # by the newer name of the call, or the older one if the driver has only that
        for name in ("EventReasons", "ThrottleReasons"):
            query = getattr(self._nvml, f"nvmlDeviceGetCurrentClocks{name}")
            mask = self._number(query, handle)
            if not isnan(mask):
                return throttle_reasons(int(mask))
        return None

    def _pcie_mb_per_s(self, index: int, handle: Any, at_ns: int) -> tuple[float, float]:
        """Return what the GPU (received, sent) since the last reading."""
        now = self._pcie_bytes(handle, at_ns)
        if now is None:
            return nan, nan
        before = self._bytes.get(index)
        self._bytes[index] = now
        if before is None:
            return nan, nan
        # A 32-bit counter may wrap once between two readings; more than 4 GiB in between cannot be
        # told from less.
        received = (now.received - before.received) % now.wrap
        sent = (now.sent - before.sent) % now.wrap
        seconds = max(now.at_ns - before.at_ns, 1) / SECOND
        return received / 1e6 / seconds, sent / 1e6 / seconds

    def _pcie_bytes(self, handle: Any, at_ns: int) -> PcieBytes | None:
        nvml = self._nvml
        fields = [nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES]
        try:
            received, sent = nvml.nvmlDeviceGetFieldValues(handle, fields)
        except nvml.NVMLError:
            return None
        if received.nvmlReturn or sent.nvmlReturn:
            return None
        if received.valueType == UNSIGNED_INT:
            return PcieBytes(at_ns, received.value.uiVal, sent.value.uiVal, wrap=1 << 32)
        return PcieBytes(at_ns, received.value.ullVal, sent.value.ullVal, wrap=1 << 64)


def _used_by(nvml: Any, handle: Any, users: Collection[int]) -> bool:
    if not users:
        return False
    try:
        computing = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return False
    return any(process.pid in users for process in computing)


def _named(nvml: Any, index: int, handle: Any, names: Collection[str]) -> bool:
    """Whether CUDA_VISIBLE_DEVICES has a GPU: by its index, or by the beginning of its UUID."""
    if not names:
        return False
    uuid = str(nvml.nvmlDeviceGetUUID(handle))
    return any(name == str(index) or uuid.startswith(name) for name in names)


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
        gpu = cls(**labels)
        memory_mib = gpu.memory_mib
        if isnan(memory_mib):  # shared with the CPU
            memory_mib = 0.0
        return replace(gpu, memory_mib=memory_mib, uuid=gpu.uuid[:UUID_LENGTH])


class ExportedGpus:
    """GPUs read from a dcgm-exporter or from our own exporter."""

    blocking = False  # sockets are gevent's: only the greenlet waits

    def __init__(self, access: TargetAccess) -> None:
        self._connection = HttpConnection(access)
        self._numbers: dict[GpuKey, int] = {}
        self.engine_cpu_s = nan  # of the engine cores, where our own exporter runs beside them

    def gpus(self) -> list[dict[str, Any]]:
        return gpu_labels(self._connection.fetch("/metrics").body, self._numbers)

    def is_ours(self) -> bool:
        """Whether it is our own exporter. Raises ServerUnreachable."""
        return is_own_exporter(self._connection.fetch("/metrics").body)

    def read(self, at_ns: int) -> list[GpuSample]:
        """Return [] if the exporter does not answer."""
        try:
            page = self._connection.fetch("/metrics").body
        except ServerUnreachable:
            self.engine_cpu_s = nan
            return []
        self.engine_cpu_s = engine_cpu_s(page)
        return gpu_samples(page, at_ns, self._numbers)

    def close(self) -> None:
        self._connection.close()


GpuSource = NvmlGpus | ExportedGpus


@dataclass(frozen=True, slots=True)
class GpuReadings:
    """The GPUs that were found; without a `source` none can be read, and `why` has the reason."""

    where: str  # local, none, or the exporter's URL
    found: tuple[GpuInfo, ...] = ()
    source: GpuSource | None = None
    why: str = ""
    of_server: bool = False  # they are the server's, not all of its machine

    @contextmanager
    def closed_if_refused(self) -> Iterator[None]:
        """Around what may still refuse the run: nobody else would close what is open then."""
        try:
            yield
        except HarnessError:
            if self.source is not None:
                self.source.close()
            raise

    def with_engine_cpu(self, sample: ServerSample) -> ServerSample:
        """Add the engine cores' CPU time where only an exporter on their machine knows it."""
        if not isinstance(self.source, ExportedGpus) or not isnan(sample.engine_cpu_s):
            return sample
        return replace(sample, engine_cpu_s=self.source.engine_cpu_s)

    def to_json(self) -> dict[str, Any]:
        gpus = [asdict(gpu) for gpu in self.found]
        return {
            "where": self.where,
            "gpus": gpus,
            "why": self.why,
            "of_server": self.of_server,
        }


def open_gpus(choice: str | None, servers: Sequence[Address]) -> GpuReadings:
    """Open the GPUs of `choice`; `servers` (): the embedded engine, which uses none.

    Raises ConfigError and ServerUnreachable for the URL of an exporter.
    """
    if choice is None and not servers:
        return GpuReadings(NONE, why="no GPU here (the embedded engine needs none)")
    if choice is None and not any(server.is_local for server in servers):
        why = "the server's GPUs are elsewhere (--gpu-metrics URL reads an exporter's)"
        return GpuReadings(NONE, why=why)
    if choice == NONE:
        return GpuReadings(NONE, why="GPUs were not read (--gpu-metrics none)")
    if choice in (None, LOCAL):
        return local_gpus(servers)
    return _exporter(str(choice))


def local_gpus(servers: Sequence[Address] = ()) -> GpuReadings:
    """Open this machine's GPUs, or of them those that servers on it use."""
    users: set[int] = set()
    visible: set[str] = set()
    for server in servers:
        if server.is_local:
            with suppress(psutil.Error):  # one of its processes ended meanwhile
                family = family_of(server.port)
                users |= {process.pid for process in family}
                visible |= visible_gpus(family)
    try:
        source = NvmlGpus.open(users=users, visible=visible)
    except NoGpu as error:
        return GpuReadings(LOCAL, why=str(error))
    found = tuple(map(GpuInfo.of, source.gpus()))
    return GpuReadings(LOCAL, found, source, of_server=source.of_server)


def visible_gpus(processes: Iterable[psutil.Process]) -> set[str]:
    """The GPUs that the processes were given, as CUDA_VISIBLE_DEVICES has them; {}: any.

    Raises psutil.Error. vLLM gives each data-parallel engine GPUs of its own.
    """
    names: set[str] = set()
    for process in processes:
        given = process.environ().get("CUDA_VISIBLE_DEVICES", "")
        names.update(name.strip() for name in given.split(","))
    return names - {""}


def _exporter(url: str) -> GpuReadings:
    address = parse_exporter_url(url)
    source = ExportedGpus(TargetAccess(address, connect_ns=ANSWER_NS, answer_ns=ANSWER_NS))
    try:
        gpus = source.gpus()
    except ServerUnreachable as error:
        why = getattr(error.__cause__, "strerror", None) or error.__cause__
        raise ServerUnreachable(
            f"--gpu-metrics is {url}, which cannot be read ({why}): expected "
            "`vllm-harness exporter` or a dcgm-exporter there; "
            f"try `curl {address}/metrics`, or --gpu-metrics none."
        ) from error
    if gpus:
        found = tuple(map(GpuInfo.of, gpus))
        return GpuReadings(str(address), found, source)
    is_ours = source.is_ours()
    source.close()
    if is_ours:
        raise ConfigError(
            f"--gpu-metrics is {url}, and this `vllm-harness exporter` sees no GPU on its "
            "machine: expected it beside the server, on the machine with the GPUs; try "
            "`vllm-harness doctor` there, or --gpu-metrics none."
        )
    raise ConfigError(
        f"--gpu-metrics is {url}, which shows no GPU: expected `vllm-harness exporter` or a "
        "dcgm-exporter (series DCGM_FI_DEV_GPU_UTIL) beside the server; "
        f"try http://{address.host}:9400, or --gpu-metrics none."
    )
