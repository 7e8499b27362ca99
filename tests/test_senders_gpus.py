"""The GPUs' readings come beside everything else, also from a library that blocks."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from gevent.event import Event
from recorded_nvml import Recorded

from harness.senders.scraper import GpuSampler
from harness.server.gpu import NvmlGpus

if TYPE_CHECKING:
    from harness.records.samples import GpuSample


class Watched(NvmlGpus):
    """Remembers in which thread it was read."""

    threads: set[int]

    def read(self, at_ns: int) -> list[GpuSample]:
        """As ever."""
        self.threads = {threading.get_ident()}
        return super().read(at_ns)


@pytest.mark.parametrize("blocking", [True, False])
def test_readings_come(blocking: bool) -> None:
    """At once and with the instant they were asked for; the library is let go at the end."""
    nvml = Recorded()
    got = []
    came = Event()
    source = Watched.open(nvml)
    source.blocking = blocking

    def on_sample(sample: GpuSample) -> None:
        got.append(sample)
        came.set()

    sampler = GpuSampler(source, on_sample)
    assert came.wait(30)
    sampler.stop()
    assert got[0].gpu == 0
    assert got[0].sm_clock_mhz == 345.0
    assert got[0].at_ns > 0
    assert (threading.get_ident() in source.threads) == (not blocking)
    assert nvml.inits == 0
