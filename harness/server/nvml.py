"""Reads this machine's GPUs from NVML, through NVIDIA's own `pynvml`.

Measured on an H200: a reading takes some milliseconds, mostly for the energy counter. NVML's own
PCIe throughput takes 21 ms per direction and covers only those 21 ms (it reported 8 and 902 MB/s
under a steady load of 216 MB/s), so ours is computed from the byte counters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import isnan, nan
from typing import TYPE_CHECKING, Any, Final

import pynvml

from harness.measure.diagnosis.gpu_window import throttle_reasons
from harness.measure.records.samples import GpuSample
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

MIB: Final = 1 << 20
UNSIGNED_INT: Final = 1  # NVML's type of a counter that wraps at 4 GiB


class NoGpu(Exception):  # noqa: N818 - a finding, not an error
    """No GPU can be read; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """PCIe byte counters at an instant; they wrap at `wrap`."""

    at_ns: int
    received: int
    sent: int
    wrap: int


class NvmlGpus:
    """This machine's GPUs. Use `open`."""

    blocking = True  # calls into a C library

    def __init__(self, nvml: Any, handles: dict[int, Any]) -> None:
        """`nvml` has pynvml's functions, `handles` are its devices by their index."""
        self._nvml = nvml
        self._handles = handles
        self._bytes: dict[int, Bytes] = {}

    @classmethod
    def open(cls, nvml: Any = pynvml, users: Collection[int] = ()) -> NvmlGpus:
        """Those that the processes `users` compute on; all, if none of them is seen on any.

        A container may hide them. Raises NoGpu.
        """
        try:
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
            handles = {i: nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)}
        except nvml.NVMLError as error:
            raise NoGpu(f"no GPU here ({error})") from None
        if not handles:
            nvml.nvmlShutdown()
            raise NoGpu("no GPU here (NVIDIA's driver sees none)")
        used = {i: one for i, one in handles.items() if users and _used_by(nvml, one, users)}
        return cls(nvml, used or handles)

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def gpus(self) -> list[dict[str, Any]]:
        nvml = self._nvml
        driver = nvml.nvmlSystemGetDriverVersion()
        return [
            {
                "index": index,
                "name": nvml.nvmlDeviceGetName(handle),
                "memory_mib": self._memory(handle, "total"),
                "driver": driver,
                "uuid": nvml.nvmlDeviceGetUUID(handle),
            }
            for index, handle in self._handles.items()
        ]

    def read(self, at_ns: int) -> list[GpuSample]:
        """Return one sample per GPU; NaN for what a GPU, its driver or a container hides."""
        return [self._read(index, handle, at_ns) for index, handle in self._handles.items()]

    def _read(self, index: int, handle: Any, at_ns: int) -> GpuSample:
        nvml, number = self._nvml, self._number
        received, sent = self._pcie_mb_per_s(index, handle, at_ns)
        return GpuSample(
            at_ns,
            index,
            util_pct=number(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            memory_util_pct=number(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory),
            memory_used_mib=self._memory(handle, "used"),
            power_w=number(lambda: nvml.nvmlDeviceGetPowerUsage(handle)) / 1e3,
            energy_j=number(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3,
            sm_clock_mhz=number(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            memory_clock_mhz=number(
                lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)
            ),
            temperature_c=number(
                lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
            pcie_rx_mb_per_s=received,
            pcie_tx_mb_per_s=sent,
            throttled=self._throttled(handle),
        )

    def _number(self, query: Callable[[], float]) -> float:
        try:
            return float(query())
        except self._nvml.NVMLError:
            return nan

    def _memory(self, handle: Any, part: str) -> float:
        return self._number(lambda: getattr(self._nvml.nvmlDeviceGetMemoryInfo(handle), part) / MIB)

    def _throttled(self, handle: Any) -> tuple[str, ...] | None:
        # by the newer name of the call, or the older one if the driver has only that
        for name in ("EventReasons", "ThrottleReasons"):
            query = partial(getattr(self._nvml, f"nvmlDeviceGetCurrentClocks{name}"), handle)
            if not isnan(mask := self._number(query)):
                return throttle_reasons(int(mask))
        return None

    def _pcie_mb_per_s(self, index: int, handle: Any, at_ns: int) -> tuple[float, float]:
        """Return what the GPU (received, sent) since the last reading."""
        # A 32-bit counter may wrap once between two readings; more than 4 GiB in between cannot be
        # told from less.
        now, before = self._count(handle, at_ns), self._bytes.get(index)
        if now is None:
            return nan, nan
        self._bytes[index] = now
        if before is None:
            return nan, nan
        seconds = max(now.at_ns - before.at_ns, 1) / SECOND
        received = (now.received - before.received) % now.wrap
        sent = (now.sent - before.sent) % now.wrap
        return received / 1e6 / seconds, sent / 1e6 / seconds

    def _count(self, handle: Any, at_ns: int) -> Bytes | None:
        nvml = self._nvml
        fields = [nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES]
        try:
            received, sent = nvml.nvmlDeviceGetFieldValues(handle, fields)
        except nvml.NVMLError:
            return None
        if received.nvmlReturn or sent.nvmlReturn:
            return None
        small = received.valueType == UNSIGNED_INT
        part = "uiVal" if small else "ullVal"
        return Bytes(
            at_ns,
            getattr(received.value, part),
            getattr(sent.value, part),
            wrap=1 << (32 if small else 64),
        )


def _used_by(nvml: Any, handle: Any, users: Collection[int]) -> bool:
    try:
        computing = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return False
    return any(process.pid in users for process in computing)
