"""The GPUs' readings, once a second, beside the load."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import gevent
from gevent.hub import get_hub
from gevent.threadpool import ThreadPool

from harness.reader.clock import CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.measure.records.samples import GpuSample
    from harness.server.gpu import GpuSource

PERIOD_S: Final = 1.0


class GpuSampler:
    """Reads in a greenlet of its own; a source that blocks is asked in a thread of its own."""

    def __init__(self, source: GpuSource, on_sample: Callable[[GpuSample], None]) -> None:
        """`on_sample` is given each sample as it comes."""
        self._source = source
        self._on_sample = on_sample
        self._thread = ThreadPool(1) if source.blocking else None
        self._greenlet = gevent.spawn(self._loop)

    def stop(self) -> None:
        """End; the source is closed too."""
        self._greenlet.kill()
        if self._thread is not None:
            self._thread.kill()
        self._source.close()

    def _loop(self) -> None:
        due = CLOCK.now_ns()
        while True:
            try:
                for sample in self._read(CLOCK.now_ns()):
                    self._on_sample(sample)
            except Exception:  # noqa: BLE001 - a reading that fails must not be the last
                get_hub().handle_error(self._read, *sys.exc_info())
            due += round(PERIOD_S * 1e9)
            gevent.sleep(max((due - CLOCK.now_ns()) / 1e9, 0.05))

    def _read(self, at_ns: int) -> list[GpuSample]:
        if self._thread is None:
            return self._source.read(at_ns)
        read: list[GpuSample] = self._thread.apply(self._source.read, (at_ns,))
        return read
