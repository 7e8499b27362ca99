"""An H200's NVML readings, recorded: pynvml's functions over them, for machines without a GPU.

Read with pynvml 13.610 and driver 580.159, idle, under a matrix product with copies to the host,
and idle again.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

SAID: dict[str, Any] = json.loads((Path(__file__).parent / "data/nvml_h200.json").read_text())


class Recorded:
    """`reading` is the current one; what is in `lacks` is not supported. `users`: device by pid."""

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM = pynvml.NVML_CLOCK_SM
    NVML_CLOCK_MEM = pynvml.NVML_CLOCK_MEM
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU
    NVML_FI_DEV_PCIE_COUNT_RX_BYTES = pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES
    NVML_FI_DEV_PCIE_COUNT_TX_BYTES = pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES

    def __init__(
        self, *, lacks: tuple[str, ...] = (), devices: int = 1, users: dict[int, int] | None = None
    ) -> None:
        self.reading = SAID["readings"][0]
        self.lacks = lacks
        self.devices = devices
        self.users = users or {}
        self.inits = 0

    def go_to(self, index: int) -> int:
        """The reading of this index is current; its instant."""
        self.reading = SAID["readings"][index]
        return int(self.reading["t_ns"])

    def nvmlInit(self) -> None:  # noqa: N802 - pynvml's name, as below
        self.inits += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.inits -= 1

    def __getattr__(self, name: str) -> Any:
        def ask(*arguments: Any) -> Any:
            if name in self.lacks:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return self._said(name, arguments)

        return ask

    def _said(self, name: str, arguments: tuple[Any, ...]) -> Any:
        now = self.reading
        clock = now["sm"] if arguments[-1:] == (pynvml.NVML_CLOCK_SM,) else now["mem"]
        gpu_pct, memory_pct = now["util"]
        processes = [
            SimpleNamespace(pid=pid)
            for pid, device in self.users.items()
            if arguments[:1] == (f"handle {(device,)}",)
        ]
        said = {
            "nvmlDeviceGetCount": self.devices,
            "nvmlDeviceGetHandleByIndex": f"handle {arguments[:1]}",
            "nvmlDeviceGetComputeRunningProcesses": processes,
            "nvmlSystemGetDriverVersion": SAID["driver"],
            "nvmlDeviceGetName": SAID["name"],
            "nvmlDeviceGetUUID": SAID["uuid"],
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=SAID["total"], used=now["used"]),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=gpu_pct, memory=memory_pct),
            "nvmlDeviceGetPowerUsage": now["power"],
            "nvmlDeviceGetTotalEnergyConsumption": now["energy"],
            "nvmlDeviceGetClockInfo": clock,
            "nvmlDeviceGetTemperature": now["temperature"],
            "nvmlDeviceGetCurrentClocksEventReasons": now["reasons"],
            "nvmlDeviceGetCurrentClocksThrottleReasons": now["reasons"],
            "nvmlDeviceGetFieldValues": [counter(now["rx"]), counter(now["tx"])],
        }
        return said[name]


def counter(value: int) -> SimpleNamespace:
    """A field's value, an unsigned integer."""
    return SimpleNamespace(nvmlReturn=0, valueType=1, value=SimpleNamespace(uiVal=value))
