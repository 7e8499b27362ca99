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
from harness.export.metric_definitions import GPU, OF_SAMPLE, TARGET, Values, render_metrics
from harness.export.metrics_server import MetricsServer
from harness.records.samples import GpuSample, ServerSample, samples_within
from harness.server.gpu import GpuInfo, GpuReadings, open_gpus
from harness.server.max_num_seqs import max_num_seqs
from harness.server.probe import flags
from harness.server.scraping import MetricsScraper, without_metrics
from harness.units import SECOND
from harness.wire.gpu_series import GPU_SERIES, MIB, REASON_LABELS
from harness.wire.kv_cache import cache_config, cache_summary, lacking
from harness.wire.vllm_metrics import ENGINE_LABEL

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
            problem = without_metrics(str(self._access.address), answer)
            self.lost(f"{problem}: expected a vLLM server; look at it with curl.")
            return
        cache = cache_summary(cache_config(answer.body))
        if self._is_new_process(sample):
            for lack in lacking(answer.body, cache):
                _say(f"{lack}.")
            samples = [sample]
            shown_flags: Mapping[str, Any] = flags(self._access)
        else:
            samples = [*before.samples[1 - KEPT :], sample]
            shown_flags = before.read
        self.seen = replace(
            before,
            up=True,
            took_s=took_ns / SECOND,
            samples=samples,
            cache=cache,
            read=shown_flags,
        )
        self.why = ""

    def _is_new_process(self, sample: ServerSample) -> bool:
        """Whether the server was down or has restarted, as a counter that fell shows.

        Its old samples say nothing about the new process, and its flags may be different.
        """
        if not self.seen.up:
            return True
        if not self.seen.samples:
            return False
        return bool(counter_that_fell(self.seen.samples[-1], sample))

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
        self.samples = []
        self.why = why


def run_exporter(
    access: TargetAccess, host: str, port: int, gpu_metrics: str | None, given: Mapping[str, Any]
) -> None:
    """Serve until SIGTERM; Ctrl-C raises KeyboardInterrupt. `given`: its flags, by the user.

    Raises ConfigError and, for a --gpu-metrics URL that does not answer, ServerUnreachable.
    """
    access.tls_context()  # report an unreadable CA file now
    target = TargetReader(access, given)
    gpu = GpuReader(open_gpus(gpu_metrics, [access.address]))
    pages = MetricsServer(host, port, lambda: render_page(target, gpu), "--port")
    signal.signal(signal.SIGTERM, lambda *_: pages.stop())
    gpus = f"; {gpu.gpus.why}" if gpu.gpus.why else ""
    _say(f"Serving {access.address} at http://{host}:{pages.port}/metrics{gpus}; Ctrl-C stops it.")
    for reader in (target, gpu):
        # A thread each, so that a server that hangs does not age the GPUs' readings; daemons, as
        # one that waits for an answer must not hold up the end.
        thread = threading.Thread(target=_every_second, args=(reader,), daemon=True)
        thread.start()
    pages.serve()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def render_page(target: TargetReader, gpu: GpuReader) -> bytes:
    now_ns = time.time_ns()
    of_gpus = gpu_values(gpu.gpus.found, gpu.samples, now_ns)
    of_target = target_values(target.seen, now_ns)
    return render_metrics(TARGET, of_target) + render_metrics(GPU, of_gpus)


def _every_second(reader: TargetReader | GpuReader) -> None:
    due_s = time.monotonic()
    reported = ""
    while True:
        try:
            reader.read()
        except Exception as error:  # noqa: BLE001 - a dead thread would keep old figures
            reader.lost(f"It cannot be read ({type(error).__name__}: {error}); trying again.")
        if reader.why != reported:
            _say(reader.why or reader.recovered)
        reported = reader.why
        # What was missed is not caught up with: after a read that took long comes one at once.
        due_s = max(due_s + PERIOD_S, time.monotonic())
        left_s = due_s - time.monotonic()
        time.sleep(max(left_s, 0.0))


ENGINE_GAUGES: Final = {
    "server_engine_running": "running",
    "server_engine_waiting": "waiting",
    "server_engine_kv_usage": "kv_usage",
}
WINDOW_NS: Final = 60 * SECOND  # over which means are taken
KEYS: Final = {metric.name.removeprefix("harness_"): metric.key for metric in GPU}


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


def target_values(state: TargetState, now_ns: int) -> Values:
    """Return the values of TARGET; those of a target that does not answer are left out."""
    values: dict[str, Any] = {"target_up": float(state.up)}
    if state.target:
        values["target_info"] = {(state.target,): 1.0}
    if not state.up or not state.samples:
        return values
    last = state.samples[-1]
    values["target_sample_age"] = (now_ns - last.at_ns) / SECOND
    values["target_scrape_duration"] = state.took_s
    values |= {metric.key: getattr(last, name) for name, metric in OF_SAMPLE.items()}
    tokens = state.cache.get("kv_tokens")
    if tokens is not None:
        values["server_kv_tokens"] = float(tokens)
        values["server_kv_free_tokens"] = tokens * (1 - last.kv_usage)
    return values | _slots(state, last) | _engines(last) | _split_ttft(state.samples)


def _engines(last: ServerSample) -> Values:
    """Of each of several engines of the target."""
    values: Values = {}
    for key, field_name in ENGINE_GAUGES.items():
        of_each = {}
        for name, engine in last.replicas.items():
            label = name.removeprefix(f"{ENGINE_LABEL} ")
            of_each[label,] = getattr(engine, field_name)
        values[key] = of_each
    return values


def _slots(state: TargetState, last: ServerSample) -> Values:
    server = {
        "flags": {**state.given, **state.read},
        "read": tuple(state.read),
        "engines": state.cache.get("engines"),
    }
    known = max_num_seqs(server, state.samples)
    if known.value is None:
        return {}
    return {
        "server_max_num_seqs": {(known.source.value,): known.slots},
        "server_slots_free": max(known.slots - last.running, 0.0),
    }


def _split_ttft(samples: Sequence[ServerSample]) -> Values:
    now_ns = samples[-1].at_ns
    recent = samples_within(samples, now_ns - WINDOW_NS, now_ns)
    ttft_s = histogram_mean_s(recent, "ttft")
    queue_s = histogram_mean_s(recent, "queue")
    prefill_s = histogram_mean_s(recent, "prefill")
    rest_s = ttft_s - queue_s - prefill_s
    parts_s = {("queue",): queue_s, ("prefill",): prefill_s, ("rest",): rest_s}
    return {"server_ttft_mean": ttft_s, "server_ttft_part_mean": parts_s}


def gpu_values(found: Sequence[GpuInfo], samples: Sequence[GpuSample], now_ns: int) -> Values:
    """Return the values of GPU from one sample per GPU."""
    if not samples:
        return {}
    age_s = (now_ns - samples[0].at_ns) / SECOND
    info: dict[tuple[str, ...], float] = {}
    memory_bytes: dict[tuple[str, ...], float] = {}
    for gpu in found:
        index = str(gpu.index)
        info[index, gpu.name, gpu.uuid, gpu.driver] = 1.0
        memory_bytes[index,] = gpu.memory_mib * MIB or nan
    values: dict[str, Any] = {
        "gpu_sample_age": age_s,
        "gpu_info": info,
        "gpu_memory": memory_bytes,
    }
    for field_name, (series, unit) in GPU_SERIES.items():
        readings = {}
        for sample in samples:
            readings[str(sample.gpu),] = getattr(sample, field_name) * unit
        key = KEYS[series]
        values[key] = readings
    throttled = {}
    for sample in samples:
        if sample.throttled is None:
            continue
        for words, label in REASON_LABELS.items():
            is_throttled = words in sample.throttled
            throttled[str(sample.gpu), label] = float(is_throttled)
    values["gpu_throttled"] = throttled
    return values
