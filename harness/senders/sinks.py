"""Where records go: every record to every sink, and a sink that fails stops nobody else."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from harness.measure.records.request_record import RecordSink, RequestRecord

logger = logging.getLogger(__name__)


class Fanout:
    """A sink of sinks."""

    def __init__(self, sinks: Iterable[RecordSink]) -> None:
        """`sinks` are fed in their order."""
        self.sinks = list(sinks)
        self.failures: dict[str, str] = {}  # name of a broken sink -> its first error

    def put(self, records: list[RequestRecord]) -> None:
        """Hand the records on; a sink that raises is reported once and loses only its own copy."""
        for sink in self.sinks:
            self._guarded(sink, partial(sink.put, records))

    def close(self) -> None:
        for sink in self.sinks:
            self._guarded(sink, sink.close)

    def _guarded(self, sink: RecordSink, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # a full disk must not end the measurement
            name = type(sink).__name__
            if name not in self.failures:
                self.failures[name] = f"{type(error).__name__}: {error}"
                logger.warning("The sink %s failed, the others go on.", name, exc_info=True)
