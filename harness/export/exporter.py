"""`vllm-harness exporter`: reads a target and its GPUs once a second, serves what it read last.

A scrape never waits for the target: threads read on their own time, and the page is made from the
newest that they have.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from harness.errors import ServerUnreachable
from harness.export.exported import GPU, TARGET, page_of
from harness.export.pages import Pages
from harness.export.target import Seen, gpu_values, target_values
from harness.measure.resets import fell
from harness.server.gpu import open_gpus
from harness.server.says import cache_summary, flags
from harness.server.scraping import Scrape
from harness.units import SECOND
from harness.wire.vllm_metrics import cache_config

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.measure.samples import GpuSample
    from harness.server.access import Access
    from harness.server.gpu import Gpus

PERIOD_S: Final = 1.0
KEPT: Final = 900  # samples: inferring the seats looks back so far


@dataclass(frozen=True, slots=True)
class ExporterOptions:
    """Which target, which GPUs, and where to serve."""

    access: Access
    host: str
    port: int
    gpu_metrics: str | None
    server_flags: Mapping[str, Any]


class TargetReader:
    """Keeps `seen`, the newest that is known of the target."""

    again = "The target answers again."

    def __init__(self, access: Access, given: Mapping[str, Any]) -> None:
        """Nothing is asked yet."""
        self._access = access
        self._scrape = Scrape(access, time.time_ns)
        self.seen = Seen(given=given, target=access.address.authority)
        self.why = ""  # it is not up

    def read(self) -> None:
        """Ask once; takes as long as the target does, at most what `access` allows."""
        before = self.seen
        try:
            answer, sample, took_ns = self._scrape()
        except ServerUnreachable as error:
            self.lost(str(error))
            return
        if sample is None:
            self.lost(f"{self._access.address}/metrics answers {answer.status} without a figure "
                       "of vLLM's: expected a vLLM server; look at it with curl.")  # fmt: skip
            return
        kept = list(before.samples)
        new = not before.up or (bool(kept) and bool(fell(kept[-1], sample)))
        self.seen = replace(
            before,
            up=True,
            took_s=took_ns / SECOND,
            samples=([] if new else kept[1 - KEPT :]) + [sample],
            cache=cache_summary(cache_config(answer.body)),
            read=flags(self._access) if new else before.read,
        )
        self.why = ""

    def close(self) -> None:
        """Hang up."""
        self._scrape.close()

    def lost(self, why: str) -> None:
        """It does not answer; nothing of it is known now."""
        self.seen = Seen(given=self.seen.given, target=self.seen.target)
        self.why = why


class GpuReader:
    """Keeps `samples`, the newest reading of each GPU."""

    again = "The GPUs can be read again."

    def __init__(self, gpus: Gpus) -> None:
        """Nothing is read yet."""
        self.gpus = gpus
        self.samples: list[GpuSample] = []
        self.why = ""  # they cannot be read now

    def read(self) -> None:
        """Read once."""
        if self.gpus.source is not None:
            self.samples = self.gpus.source.read(time.time_ns())
            self.why = ""

    def lost(self, why: str) -> None:
        """Nothing of them is known now."""
        self.samples, self.why = [], why


def run_exporter(options: ExporterOptions, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM; Ctrl-C raises KeyboardInterrupt. `say` gets lines for a person.

    Raises ConfigError and, for a --gpu-metrics URL that does not answer, ServerUnreachable.
    """
    options.access.tls_context()  # an unreadable CA file is said now
    target = TargetReader(options.access, options.server_flags)
    gpu = GpuReader(open_gpus(options.gpu_metrics, options.access.address))
    pages = Pages(options.host, options.port, lambda: made(target, gpu), "--port")
    signal.signal(signal.SIGTERM, lambda *_: pages.stop())
    say(f"Serving {options.access.address} at http://{options.host}:{pages.port}/metrics"
        f"{'; ' + gpu.gpus.why if gpu.gpus.why else ''}; Ctrl-C stops it.")  # fmt: skip
    for reader in (target, gpu):
        threading.Thread(target=_every_second, args=(reader, say), daemon=True).start()
    pages.serve()


def made(target: TargetReader, gpu: GpuReader) -> bytes:
    """The page, from what was read last."""
    now_ns = time.time_ns()
    return page_of(TARGET, target_values(target.seen, now_ns)) + page_of(
        GPU, gpu_values(gpu.gpus.found, gpu.samples, now_ns)
    )


def _every_second(reader: TargetReader | GpuReader, say: Callable[[str], None]) -> None:
    due, told = time.monotonic(), ""
    while True:
        try:
            reader.read()
        except Exception as error:  # noqa: BLE001 - or a page of old figures is served for ever
            reader.lost(f"It cannot be read ({type(error).__name__}: {error}); it is tried again.")
        if reader.why != told:
            say(reader.why or reader.again)
        told = reader.why
        due = max(due + PERIOD_S, time.monotonic())
        time.sleep(max(due - time.monotonic(), 0.0))


def to_stderr(line: str) -> None:
    """A line for a person who watches the process."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
