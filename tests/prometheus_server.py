"""A real Prometheus on loopback for a test: what it scrapes, and what its HTTP API answers."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from study_process import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

Labels = tuple[tuple[str, str], ...]
Point = tuple[float, float]  # s since 1970, value


def labels_of(metric: Mapping[str, str]) -> Labels:
    """Sorted, with the name."""
    return tuple(sorted(metric.items()))


def points_of(data: Any) -> dict[Labels, list[Point]]:
    """Of each series of an answer."""
    points = {}
    for series in data["result"]:
        values = [(at_s, float(value)) for at_s, value in series["values"]]
        points[labels_of(series["metric"])] = values
    return points


@dataclass(frozen=True, slots=True)
class Prometheus:
    """`url` of a running one."""

    url: str

    def ask(self, path: str, **params: Any) -> Any:
        """GET or POST of the API; the answer's data. A refusal fails the test with its words."""
        body = urllib.parse.urlencode(params, doseq=True)
        where = f"{self.url}/api/v1/{path}"
        data = None
        if path.startswith("query"):
            data = body.encode()
        elif body:
            where += f"?{body}"
        try:
            with urllib.request.urlopen(where, data, 30) as answer:  # noqa: S310 - loopback
                said = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{params}: {error.read().decode()}") from None
        assert said["status"] == "success", said
        return said["data"]

    def over(self, expr: str, start: float, end: float, step: float) -> dict[Labels, list[Point]]:
        """`query_range`."""
        return points_of(self.ask("query_range", query=expr, start=start, end=end, step=step))

    def raw(self, selector: str, at: float, back_s: int) -> dict[Labels, list[Point]]:
        """Every stored sample of the last `back_s` seconds before `at`."""
        return points_of(self.ask("query", query=f"{selector}[{back_s}s]", time=at))

    def up(self, instance: str) -> bool:
        """Whether its last scrape went well, that of each job which scrapes it."""
        found = self.ask("query", query=f'up{{instance="{instance}"}}')["result"]
        values = {series["value"][1] for series in found}
        return values == {"1"}

    @property
    def version(self) -> int:
        """2 or 3."""
        return int(self.ask("status/buildinfo")["version"].partition(".")[0])


def configuration(
    jobs: Mapping[str, str], every: str, labels: Mapping[str, Mapping[str, str]]
) -> str:
    """The text of prometheus.yml: JSON is YAML."""
    scrapes = []
    for job, target in jobs.items():
        found = {"targets": [target], "labels": labels.get(job, {})}
        scrapes.append({"job_name": job, "static_configs": [found]})
    return json.dumps({"global": {"scrape_interval": every}, "scrape_configs": scrapes})


@contextlib.contextmanager
def prometheus(
    folder: Path,
    jobs: Mapping[str, str],
    every: str = "1s",
    labels: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> Iterator[Prometheus]:
    """Scrapes `jobs` (name -> HOST:PORT) into `folder`, with the job's `labels`.

    Skips the test where there is none.
    """
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (Debian, Ubuntu: apt-get install prometheus)")
    folder.mkdir(exist_ok=True)
    (folder / "prometheus.yml").write_text(configuration(jobs, every, labels))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    made = Prometheus(f"http://127.0.0.1:{port}")

    def ready() -> bool:
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{made.url}/-/ready", timeout=5):  # noqa: S310 - loopback
                return True
        except OSError:
            return False

    try:
        wait_for(ready)
        yield made
    finally:
        process.terminate()
        process.wait(20)
