"""A whole experiment on a small stage: server, exporter with a recorded GPU, run, Prometheus."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any, Final

from prometheus_server import prometheus
from recorded_nvml import SAID, Recorded
from study_process import started, wait_for

from harness.export.exporter_service import GpuReader, TargetReader, render_page
from harness.export.metrics_server import MetricsServer
from harness.server.access import TargetAccess
from harness.server.address import Address
from harness.server.gpu import GpuInfo, GpuReadings, NvmlGpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from prometheus_server import Labels, Point, Prometheus

    from harness.metrics.slo import Slo


ANY: Final = {"namespace": ".*", "pod": ".*", "engine": ".*", "price": "1"}  # All, and a price


def with_variables(expr: str, values: Mapping[str, str]) -> str:
    """As Grafana puts them in."""
    for name, value in values.items():
        expr = expr.replace(f"${name}", value)
    return expr


@dataclass(frozen=True, slots=True)
class Staged:
    """A run that is over, in Prometheus and in its folder."""

    prometheus: Prometheus
    folder: Path
    chosen: dict[str, str]  # the variables of dashboards
    began: float  # the first and
    ended: float  # the last scrape of the run, s since 1970

    def over(self, expr: str, window: str, step_s: float = 1.0) -> dict[Labels, list[Point]]:
        """A dashboard's expression over the run."""
        expr = with_variables(expr, {**self.chosen, "__rate_interval": window})
        return self.prometheus.over(expr, self.began - 2, self.ended + 2, step_s)

    def without_data(self, asked: Iterable[tuple[Any, str]]) -> set[Any]:
        """Keys of expressions that have no value at any time; short steps need short windows."""
        return {
            key
            for key, expr in asked
            if all(isnan(v) for points in self.over(expr, "2s", 0.5).values() for _, v in points)
        }


@contextlib.contextmanager
def exporter(url: str, gpu_s: float, flags: Mapping[str, Any]) -> Iterator[str]:
    """Ours, with a recorded H200 instead of this machine's GPUs; its HOST:PORT.

    Each recorded reading is the GPU's for `gpu_s` seconds.
    """
    nvml = Recorded()
    source = NvmlGpus.open(nvml)
    gpu = GpuReader(GpuReadings("local", tuple(map(GpuInfo.of, source.gpus())), source))
    target = TargetReader(TargetAccess(Address.parse(url)), flags)
    over = threading.Event()
    scraped: list[float] = []

    def page() -> bytes:
        scraped.append(time.monotonic())
        return render_page(target, gpu)

    def read() -> None:
        while True:
            late = time.monotonic() - scraped[0] if scraped else 0.0  # the first scrape sees all
            nvml.go_to(min(int(late / gpu_s), len(SAID["readings"]) - 1))
            target.read()
            gpu.read()
            if over.wait(1.0):
                return

    pages = MetricsServer("127.0.0.1", 0, page, "--port")
    threads = [threading.Thread(target=each) for each in (read, pages.serve)]
    for thread in threads:
        thread.start()
    try:
        yield f"127.0.0.1:{pages.port}"
    finally:
        over.set()
        pages.stop()
        for thread in threads:
            thread.join()
        target.close()
        source.close()


@contextlib.contextmanager
def staged(
    url: str,
    model: str,
    place: Path,
    slos: Sequence[Slo],
    port: int,
    *command: str,
    gpu_s: float = 2.0,
    flags: Mapping[str, Any] | None = None,
    pod: Mapping[str, str] | None = None,
) -> Iterator[Staged]:
    """Run `command` against a server and wait until Prometheus has all of it.

    `pod`: labels with which the server is scraped a second time, as in a cluster.
    """
    folder = place / "knee-of-the-stage"
    run, server = f"127.0.0.1:{port}", Address.parse(url).authority
    with exporter(url, gpu_s, flags or {}) as beside:
        jobs = {"run": run, "server": server, "beside": beside}
        if pod:
            jobs["pod"] = server
        labels = {"pod": pod or {}}
        with prometheus(place / "prometheus", jobs, "500ms", labels) as prom:
            wait_for(lambda: prom.up(server) and prom.up(beside))
            process = started(
                command[0],
                url,
                *command[1:],
                "--quiet",
                "--out",
                str(folder),
                "--metrics-port",
                str(port),
                *(p for slo in slos for p in ("--slo", str(slo))),
            )
            _, said = process.communicate(timeout=240)
            assert process.returncode in (0, 5, 6, 99), said
            wait_for(lambda: not prom.up(run))
            up = prom.raw(f'up{{instance="{run}"}}', time.time(), 600)
            at = [t for t, v in next(iter(up.values())) if v == 1]
            chosen = {**ANY, "run": folder.name, "model_name": model, "target": server}
            yield Staged(prom, folder, chosen, at[0], at[-1])
