"""`vllm-harness exporter`: reads a target and its GPUs every second, serves the last readings."""

# A scrape by Prometheus never waits for the target: one thread per source reads it periodically,
# and the page is rendered from the latest readings. The readers share no lock with the page: they
# replace `seen` and `samples` as a whole, so a page sees the old state or the new one.

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import TYPE_CHECKING, Any, Final

from harness.diagnosis.server_window import counter_that_fell, histogram_mean_s
from harness.errors import ServerUnreachable
from harness.export.metric_definitions import GPU, TARGET, Values, render_metrics
from harness.export.metrics_server import MetricsServer
from harness.records.samples import GpuSample, ServerSample, samples_within
from harness.server.gpu import GpuInfo, GpuReadings, open_gpus
from harness.server.max_num_seqs import max_num_seqs
from harness.server.probe import flags
from harness.server.scraping import MetricsScraper, without_metrics
from harness.units import SECOND
from harness.wire.gpu_series import GPU_SERIES, MIB, REASON_LABELS
from harness.wire.kv_cache import cache_config, cache_summary, lacking

if TYPE_CHECKING:
    from harness.server.access import TargetAccess

PERIOD_S: Final = 1.0
KEPT: Final = 900  # samples: 15 minutes, from which max_num_seqs is inferred


class TargetReader:
    """Keeps `seen`, the latest state of the target."""

    recovered = "The target answers again."

    def __init__(self, access: TargetAccess, given: Mapping[str, Any]) -> None:
        self._access = access
        self._scrape = MetricsScraper(access, time.time_ns)
        self.seen = TargetState(given=given, target=access.address.authority)
        self.why = ""  # the reason why it is down

    def read(self) -> None:
        """Scrape once; takes as long as the target does, at most the timeout of `access`."""
        before = self.seen
        try:
            answer, sample, took_ns = self._scrape()
        except ServerUnreachable as error:
            self.lost(str(error))
            return
        if sample is None:
            found = without_metrics(str(self._access.address), answer)
            self.lost(f"{found}: expected a vLLM server; look at it with curl.")
            return
        kept = list(before.samples)
        # A counter that fell means that the server has restarted: its old samples say nothing about
        # the new process, and its flags may be different.
        new = not before.up or (bool(kept) and bool(counter_that_fell(kept[-1], sample)))
        cache = cache_summary(cache_config(answer.body))
        if new:
            for lack in lacking(answer.body, cache):
                _say(f"{lack}.")
        self.seen = replace(
            before,
            up=True,
            took_s=took_ns / SECOND,
            samples=([] if new else kept[1 - KEPT :]) + [sample],
            cache=cache,
            read=flags(self._access) if new else before.read,
        )
        self.why = ""

    def close(self) -> None:
        self._scrape.close()

    def lost(self, why: str) -> None:
        self.seen = TargetState(given=self.seen.given, target=self.seen.target)
        self.why = why


class GpuReader:
    """Keeps `samples`, the latest reading of each GPU."""

    recovered = "The GPUs can be read again."

    def __init__(self, gpus: GpuReadings) -> None:
        self.gpus = gpus
        self.samples: list[GpuSample] = []
        self.why = ""  # the reason why they cannot be read

    def read(self) -> None:
        if self.gpus.source is not None:
            self.samples = self.gpus.source.read(time.time_ns())
            self.why = ""

    def lost(self, why: str) -> None:
        self.samples, self.why = [], why


def run_exporter(
    access: TargetAccess, host: str, port: int, gpu_metrics: str | None, given: Mapping[str, Any]
) -> None:
    """Serve until SIGTERM; Ctrl-C raises KeyboardInterrupt. `given`: its flags, by the user.

    Raises ConfigError and, for a --gpu-metrics URL that does not answer, ServerUnreachable.
    """
    access.tls_context()  # report an unreadable CA file now
    target = TargetReader(access, given)
    gpu = GpuReader(open_gpus(gpu_metrics, access.address))
    pages = MetricsServer(host, port, lambda: render_page(target, gpu), "--port")
    signal.signal(signal.SIGTERM, lambda *_: pages.stop())
    more = f"; {gpu.gpus.why}" if gpu.gpus.why else ""
    _say(f"Serving {access.address} at http://{host}:{pages.port}/metrics{more}; Ctrl-C stops it.")
    for reader in (target, gpu):
        threading.Thread(target=_every_second, args=(reader,), daemon=True).start()
    pages.serve()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def render_page(target: TargetReader, gpu: GpuReader) -> bytes:
    now_ns = time.time_ns()
    gpus = gpu_values(gpu.gpus.found, gpu.samples, now_ns)
    return render_metrics(TARGET, target_values(target.seen, now_ns)) + render_metrics(GPU, gpus)


def _every_second(reader: TargetReader | GpuReader) -> None:
    due, reported = time.monotonic(), ""
    while True:
        try:
            reader.read()
        except Exception as error:  # noqa: BLE001 - a dead thread would keep old figures
            reader.lost(f"It cannot be read ({type(error).__name__}: {error}); trying again.")
        if reader.why != reported:
            _say(reader.why or reader.recovered)
        reported = reader.why
        due = max(due + PERIOD_S, time.monotonic())
        time.sleep(max(due - time.monotonic(), 0.0))


WINDOW_NS: Final = 60 * SECOND  # over which means are taken
KEYS: Final = {one.name.removeprefix("harness_"): one.key for one in GPU}


@dataclass(frozen=True, slots=True)
class TargetState:
    """The state of the target after a scrape; `samples` since its last start, in order."""

    up: bool = False
    took_s: float = nan
    samples: Sequence[ServerSample] = ()
    cache: Mapping[str, Any] = field(default_factory=dict)  # kv_cache.cache_summary
    read: Mapping[str, Any] = field(default_factory=dict)  # flags that the server shows
    given: Mapping[str, Any] = field(default_factory=dict)  # flags that the user gave
    target: str = ""  # HOST:PORT


def target_values(seen: TargetState, now_ns: int) -> Values:
    """Return the values of TARGET; those of a target that does not answer are left out."""
    values: dict[str, Any] = {"target_up": float(seen.up)}
    if seen.target:
        values["target_info"] = {(seen.target,): 1.0}
    if not seen.up or not seen.samples:
        return values
    last = seen.samples[-1]
    values["target_sample_age"] = (now_ns - last.at_ns) / SECOND
    values["target_scrape_duration"] = seen.took_s
    values["engine_cpu"] = last.engine_cpu_s
    tokens = seen.cache.get("kv_tokens")
    if tokens is not None:
        values["server_kv_tokens"] = float(tokens)
        values["server_kv_free_tokens"] = tokens * (1 - last.kv_usage)
    return values | _slots(seen, last) | _split(seen.samples)


def _slots(seen: TargetState, last: ServerSample) -> Values:
    flags, engines = {**seen.given, **seen.read}, seen.cache.get("engines")
    server = {"flags": flags, "read": tuple(seen.read), "engines": engines}
    found = max_num_seqs(server, seen.samples)
    if found.value is None:
        return {}
    return {
        "server_max_num_seqs": {(found.source.value,): found.slots},
        "server_slots_free": max(found.slots - last.running, 0.0),
    }


def _split(samples: Sequence[ServerSample]) -> Values:
    recent = samples_within(samples, samples[-1].at_ns - WINDOW_NS, samples[-1].at_ns)
    ttft, queue, prefill = (histogram_mean_s(recent, key) for key in ("ttft", "queue", "prefill"))
    parts = {"queue": queue, "prefill": prefill, "rest": ttft - queue - prefill}
    return {
        "server_ttft_mean": ttft,
        "server_ttft_part_mean": {(part,): value for part, value in parts.items()},
    }


def gpu_values(found: Sequence[GpuInfo], samples: Sequence[GpuSample], now_ns: int) -> Values:
    """Return the values of GPU from one sample per GPU."""
    if not samples:
        return {}
    values: dict[str, Any] = {
        "gpu_info": {(str(g.index), g.name, g.uuid, g.driver): 1.0 for g in found},
        "gpu_memory": {(str(g.index),): g.memory_mib * MIB or nan for g in found},
        "gpu_sample_age": (now_ns - samples[0].at_ns) / SECOND,
    }
    for name, (series, unit) in GPU_SERIES.items():
        values[KEYS[series]] = {(str(s.gpu),): getattr(s, name) * unit for s in samples}
    values["gpu_throttled"] = {
        (str(s.gpu), label): float(words in s.throttled)
        for s in samples
        if s.throttled is not None
        for words, label in REASON_LABELS.items()
    }
    return values
