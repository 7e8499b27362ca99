"""`--otlp`: what a collector receives has the figures of result.json, and no secret."""

from __future__ import annotations

import gzip
import os
from collections import defaultdict
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import isfinite
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from report_folder import make
from study_process import load

from harness.cli.app import main
from harness.core import extras
from harness.errors import EXIT_INCONCLUSIVE, ConfigError
from harness.export.otlp_endpoint import otlp_endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# one worker makes what they look at
pytestmark = pytest.mark.xdist_group("otlp")
SECRET: Final = "9f86d081884c7d659a2feaa0"  # noqa: S105 - planted
HELD: Final = (4, 8, 50, 50)
OPERATION: Final = "gen_ai.client.operation"
HISTOGRAMS: Final = {  # the name of each latency of result.json
    "ttft_ms": f"{OPERATION}.time_to_first_chunk",
    "itl_ms": f"{OPERATION}.time_per_output_chunk",
    "e2e_ms": f"{OPERATION}.duration",
}
COMMON: Final = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "vllm",
    "gen_ai.request.model": "example-1.5b",
    "server.address": "127.0.0.1",
    "server.port": 8000,
}


class Collector(ThreadingHTTPServer):
    """Takes what an OTLP receiver takes; answers `status`."""

    daemon_threads = True

    def __init__(self, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = status
        self.paths: list[str] = []
        self.heads: list[dict[str, str]] = []
        self.bodies: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def resource(self) -> Any:
        """The only one of the only request."""
        (body,) = self.bodies
        (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
        return resource

    @property
    def metrics(self) -> dict[str, Any]:
        (scope,) = self.resource.scope_metrics
        return {metric.name: metric for metric in scope.metrics}


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        collector = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        collector.paths.append(self.path)
        collector.heads.append({name.lower(): value for name, value in self.headers.items()})
        collector.bodies.append(body)
        answer = ExportMetricsServiceResponse().SerializeToString()
        self.send_response(collector.status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Nothing: the test looks."""


@contextmanager
def collector(status: int = 200) -> Iterator[Collector]:
    with Collector(status) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of whoever runs the tests are not theirs."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("otlp") / "run"
    make(path, seconds=2, levels=HELD)
    return path


@pytest.fixture(scope="module")
def sent(folder: Path) -> Collector:
    """What a collector got of the folder."""
    with collector() as server:
        assert main(["report", str(folder), "--otlp", server.url]) == EXIT_INCONCLUSIVE
    return server


def attributes(of: Any) -> dict[str, Any]:
    found = {}
    for entry in of.attributes:
        kind = entry.value.WhichOneof("value")
        found[entry.key] = getattr(entry.value, kind)
    return found


def by_level(metric: Any) -> dict[int, list[Any]]:
    points = defaultdict(list)
    for point in metric.histogram.data_points:
        points[attributes(point)["vllm_harness.level"]].append(point)
    return dict(points)


@pytest.mark.parametrize(("field", "name"), HISTOGRAMS.items())
def test_histograms_have_the_figures_of_the_result(field, name, sent, folder) -> None:
    """Count, sum and maximum of each level; all failed requests' latencies are infinite there."""
    points = by_level(sent.metrics[name])
    levels = load(folder / "result.json")["levels"]
    assert len(points) == len(levels) == len(HELD)
    for level in levels:
        (point,) = points[level["index"]]
        figures = level[field]
        count = figures["n"] - figures["n_failed"]
        got = (point.count, point.sum * 1e3 / count, point.max * 1e3)
        want = (count, figures["mean"], figures["max"])
        assert got == pytest.approx(want, rel=1e-3)
        assert sum(point.bucket_counts) == count
        window = (point.start_time_unix_nano, point.time_unix_nano)
        assert window == (level["settled_ns"], level["end_ns"])


def test_every_point_says_of_what_it_is(sent, folder) -> None:
    """The conventions' attributes, and the level."""
    levels = load(folder / "result.json")["levels"]
    for points in by_level(sent.metrics[HISTOGRAMS["ttft_ms"]]).values():
        for point in points:
            got = attributes(point)
            level = levels[got["vllm_harness.level"]]
            assert got == COMMON | {
                "vllm_harness.level": level["index"],
                "vllm_harness.load": level["users"],
                "vllm_harness.load.unit": "concurrent request",
            }


def test_buckets_are_those_of_the_conventions(sent) -> None:
    """Doubling from 10 ms; tokens by fours; a histogram since the level began."""
    seconds = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96]
    duration = sent.metrics[f"{OPERATION}.duration"]
    assert (duration.unit, sent.metrics["gen_ai.client.token.usage"].unit) == ("s", "{token}")
    assert list(duration.histogram.data_points[0].explicit_bounds) == [*seconds, 81.92]
    tokens = sent.metrics["gen_ai.client.token.usage"].histogram.data_points[0]
    assert list(tokens.explicit_bounds) == [4.0**power for power in range(14)]
    temporality = duration.histogram.aggregation_temporality
    assert temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


def test_tokens_are_those_of_the_requests(sent) -> None:
    """Prompts of 256 tokens each."""
    points = sent.metrics["gen_ai.client.token.usage"].histogram.data_points
    types = {attributes(point)["gen_ai.token.type"] for point in points}
    assert types == {"input", "output"}
    for point in points:
        if attributes(point)["gen_ai.token.type"] == "input":
            assert point.sum == 256 * point.count


def test_quantiles_go_with_their_intervals(sent, folder) -> None:
    """In seconds; an end that is not known is not sent."""
    got = {}
    for point in sent.metrics["vllm_harness.latency.quantile"].gauge.data_points:
        said = attributes(point)
        key = tuple(said[f"vllm_harness.{name}"] for name in ("level", "latency", "quantile"))
        got[*key, said["vllm_harness.bound"]] = point.as_double
    want = {}
    for level in load(folder / "result.json")["levels"]:
        figures = level["ttft_ms"]
        low, high = figures["p95_ci95"]
        bounds = {"value": figures["p95"], "low": low, "high": high}
        for bound, ms in bounds.items():
            if ms is not None and isfinite(float(ms)):
                want[level["index"], "ttft", 0.95, bound] = ms / 1e3
    assert {key: got.get(key) for key in want} == pytest.approx(want)
    assert len(want) > len(HELD)


def test_the_knee_is_that_of_the_result(sent, folder) -> None:
    """Each of its numbers that is known."""
    knee = load(folder / "result.json")["knee"]
    low, _ = knee["ci95"]
    assert knee["fails_by"] is None  # so the upper end is not known
    bounds = {"value": knee["estimate"], "holds": knee["holds"], "low": low}
    got = {
        attributes(point)["vllm_harness.bound"]: point.as_double
        for point in sent.metrics["vllm_harness.knee"].gauge.data_points
    }
    assert got == {name: load for name, load in bounds.items() if load is not None}
    assert got


def test_a_failed_request_has_a_duration_and_a_reason(tmp_path) -> None:
    """By its outcome: `error.type`."""
    path = tmp_path / "run"
    make(path, seconds=2, levels=(32,), fail_above=16)
    with collector() as server:
        main(["report", str(path), "--otlp", server.url])
    (level,) = load(path / "result.json")["levels"]
    failed = 0
    for point in server.metrics[f"{OPERATION}.duration"].histogram.data_points:
        if (outcome := attributes(point).get("error.type")) is not None:
            assert point.count == level["outcomes"][outcome]
            failed += point.count
    assert failed == level["n_failed"] > 0


def test_the_environment_says_where_and_who(folder, monkeypatch, capsys) -> None:
    """As every OpenTelemetry SDK reads it; a header is sent, and stands in nothing else."""
    with collector() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"x-api-key={SECRET}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=staging")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "nightly")
        main(["report", str(folder), "--otlp", "env"])
    assert server.paths == ["/v1/metrics"]
    assert server.heads[0]["x-api-key"] == SECRET
    said = attributes(server.resource.resource)
    assert said["service.name"] == "nightly"
    assert said["deployment.environment.name"] == "staging"
    assert said["vllm_harness.command"] == "knee"
    assert SECRET.encode() not in server.bodies[0]
    written = capsys.readouterr()
    assert SECRET not in written.out + written.err
    for path in folder.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()


def test_a_refusal_changes_no_answer(folder, capsys) -> None:
    """It is said, with a way to send them again; the exit code is the answer's."""
    with collector(status=401) as server:
        assert main(["report", str(folder), "--otlp", server.url]) == EXIT_INCONCLUSIVE
    said = capsys.readouterr().err
    assert f"not taken by the OTLP endpoint {server.url}/v1/metrics (" in said
    assert "401" in said
    assert f"try `vllm-harness report {folder} --otlp URL`" in said


@pytest.mark.parametrize(
    ("given", "variables", "want"),
    [
        ("http://127.0.0.1:4318", {}, "http://127.0.0.1:4318/v1/metrics"),
        ("https://otel.example/otlp/", {}, "https://otel.example/otlp/v1/metrics"),
        ("http://c:4318/v1/metrics", {}, "http://c:4318/v1/metrics"),
        ("env", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "env"),
    ],
)
def test_an_endpoint(given, variables, want, monkeypatch) -> None:
    """A base URL gets the path of metrics, as OTEL_EXPORTER_OTLP_ENDPOINT does."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert otlp_endpoint(given) == want


@pytest.mark.parametrize(
    ("given", "variables", "want"),
    [
        ("127.0.0.1:4318", {}, "is no URL that can be used"),
        ("grpc://127.0.0.1:4317", {}, "is no URL that can be used"),
        (f"https://me:{SECRET}@c", {}, "keys belong in OTEL_EXPORTER_OTLP_HEADERS"),
        (f"https://c/?key={SECRET}", {}, "keys belong in OTEL_EXPORTER_OTLP_HEADERS"),
        ("env", {}, "OTEL_EXPORTER_OTLP_ENDPOINT is not set"),
        (
            "env",
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc': expected http/protobuf",
        ),
    ],
)
def test_an_endpoint_that_is_refused(given, variables, want, monkeypatch) -> None:
    """Before any load; a secret in it is not repeated."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as refused:
        otlp_endpoint(given)
    assert want in str(refused.value)
    assert SECRET not in str(refused.value)


def test_without_the_extra_it_is_refused(monkeypatch) -> None:
    """With how to install it."""
    monkeypatch.setitem(extras.MODULES, "opentelemetry-exporter-otlp-proto-http", "no.such.module")
    with pytest.raises(ConfigError, match=r"try `pip install 'vllm-harness\[otlp\]'`"):
        otlp_endpoint("http://127.0.0.1:4318")
