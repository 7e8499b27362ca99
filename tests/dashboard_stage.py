"""A whole experiment on a small stage: engine, exporter with a recorded GPU, run, Prometheus.

A decoy page beside them holds every series again, of another run, model and target, with other
values: an expression that does not choose what it should adds it.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import urllib.request
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from counted import records
from prometheus_server import prometheus
from promql_again import Stored
from recorded_nvml import SAID, Recorded
from study_process import started, wait_for

from harness.export.exporter import GpuReader, TargetReader, made
from harness.export.live import LiveRun
from harness.export.pages import Pages
from harness.measure.result import Knee
from harness.measure.samples import ClientSample
from harness.server.access import Access
from harness.server.address import Address
from harness.server.gpu import Gpu, Gpus
from harness.server.nvml import NvmlGpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from prometheus_server import Prometheus

    from harness.measure.slo import Slo

GPU_S = 5.0  # how long each recorded reading is the GPU's
OURS = '{__name__=~"harness_.+|vllm:.+|process_cpu_seconds_total|up"}'


@dataclass(frozen=True, slots=True)
class Staged:
    """A run that is over, in Prometheus and in its folder."""

    prometheus: Prometheus
    folder: Path
    instances: dict[str, str]  # page -> HOST:PORT
    chosen: dict[str, str]  # run, model, target: regular expressions
    began: float  # the first and
    ended: float  # the last scrape of the run, s since 1970
    decoy: str = ""  # HOST:PORT of its page

    def stored(self, window_s: float) -> Stored:
        """Everything that Prometheus has of it."""
        now = time.time()
        raw = self.prometheus.raw(OURS, now, int(now - self.began) + 30)
        pages = {page: (where,) for page, where in self.instances.items()}
        return Stored(raw, pages, self.prometheus.version, window_s)

    def filled(self, expr: str, window: str) -> str:
        """With the dashboard's variables chosen."""
        for name, value in {**self.chosen, "window": window}.items():
            expr = expr.replace(f"${name}", value)
        return expr


@contextlib.contextmanager
def served(page: Callable[[], bytes]) -> Iterator[str]:
    """HOST:PORT of a page; another thread serves it."""
    pages = Pages("127.0.0.1", 0, page, "--port")
    thread = threading.Thread(target=pages.serve)
    thread.start()
    try:
        yield f"127.0.0.1:{pages.port}"
    finally:
        pages.stop()
        thread.join()


@contextlib.contextmanager
def exporter(url: str, gpu_s: float, flags: Mapping[str, Any]) -> Iterator[str]:
    """Ours, with a recorded H200 instead of this machine's GPUs; its HOST:PORT."""
    nvml = Recorded()
    source = NvmlGpus.open(nvml)
    gpu = GpuReader(Gpus("local", tuple(map(Gpu.of, source.gpus())), source))
    target = TargetReader(Access(Address.parse(url)), flags)
    over = threading.Event()
    scraped: list[float] = []

    def page() -> bytes:
        scraped.append(time.monotonic())
        return made(target, gpu)

    def read() -> None:
        while True:
            late = time.monotonic() - scraped[0] if scraped else 0.0  # the first scrape sees all
            nvml.go_to(min(int(late / gpu_s), len(SAID["readings"]) - 1))
            target.read()
            gpu.read()
            if over.wait(1.0):
                return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        with served(page) as where:
            yield where
    finally:
        over.set()
        thread.join()
        target.close()
        source.close()


@contextlib.contextmanager
def decoy(url: str, beside: str, slos: Sequence[Slo]) -> Iterator[str]:
    """Another run of another model on another target, all on one page."""
    live = LiveRun("knee", "chat", [replace(slo, limit_ns=2 * slo.limit_ns) for slo in slos])
    live.known("another", "other", "other:1")
    live.users(777, 777)
    live.step(7, "measuring", "hold")
    live.past(["pass", "fail"], 700.0, 800.0)
    live.found(Knee(776, 777, ci95=(776, 778)))
    made_of = records(5, 600)
    cpu_s = count(1.0, 0.25)

    def page() -> bytes:
        live.clients([ClientSample(0, "main", next(cpu_s), 7.0)])
        live.counts.put([made_of.pop() for _ in range(min(5, len(made_of)))])  # it moves
        return live.page() + b"".join(map(elsewhere, (url, f"http://{beside}")))

    with served(page) as where:
        yield where


def elsewhere(url: str) -> bytes:
    """A page of ours or of vLLM's with other labels and other values: 3 v + 1."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:  # noqa: S310 - loopback
        text = answer.read().decode()
    text = re.sub(r'model_name="[^"]*"', 'model_name="other"', text)
    text = re.sub(r'(harness_target_info{target)="[^"]*"', r'\1="other:1"', text)
    lines = (line.rpartition(" ") for line in text.splitlines() if line[:1] not in ("", "#"))
    return "".join(f"{name} {3 * float(value) + 1}\n" for name, _, value in lines).encode()


@contextlib.contextmanager
def staged(
    url: str,
    model: str,
    place: Path,
    slos: Sequence[Slo],
    port: int,
    *command: str,
    gpu_s: float = GPU_S,
    flags: Mapping[str, Any] | None = None,
) -> Iterator[Staged]:
    """Run `command` against a server and wait until Prometheus has all of it."""
    folder = place / "knee-of-the-stage"
    run, server = f"127.0.0.1:{port}", Address.parse(url).authority
    with exporter(url, gpu_s, flags or {}) as beside, decoy(url, beside, slos) as other:
        jobs = {"run": run, "server": server, "beside": beside, "decoy": other}
        with prometheus(place / "prometheus", jobs) as prom:
            wait_for(lambda: prom.up(server) and prom.up(beside) and prom.up(other))
            process = started(
                command[0], url, *command[1:], "--quiet", "--out", str(folder),
                "--metrics-port", str(port), *(p for slo in slos for p in ("--slo", str(slo))),
            )  # fmt: skip
            _, said = process.communicate(timeout=240)
            assert process.returncode in (0, 5, 6, 99), said
            wait_for(lambda: not prom.up(run))
            up = prom.raw(f'up{{instance="{run}"}}', time.time(), 600)
            at = [t for t, v in next(iter(up.values())) if v == 1]
            pages = {"run": run, "server": server, "beside": beside}
            chosen = {"run": folder.name, "model": model, "target": server}
            yield Staged(prom, folder, pages, chosen, at[0], at[-1], other)
