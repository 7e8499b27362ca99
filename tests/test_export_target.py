"""The exporter's page: values of a target and its GPUs, from scrapes and recorded NVML readings."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from math import inf, nan

import pytest
from little_servers import http, little_server
from prometheus_tools import lines_of, promtool
from recorded_nvml import Recorded

from harness.export.exporter_service import (
    GpuReader,
    TargetReader,
    TargetState,
    gpu_values,
    render_page,
    target_values,
)
from harness.export.metric_definitions import (
    GPU,
    METRIC_DEFINITIONS,
    TARGET,
    MetricDefinition,
    render_metrics,
)
from harness.records.histogram import Histogram
from harness.records.samples import ServerSample, summed_fields
from harness.server.access import TargetAccess
from harness.server.address import Address
from harness.server.gpu import GpuInfo, GpuReadings, NvmlGpus, open_gpus
from harness.wire.gpu_series import GPU_SERIES, REASON_LABELS

S = 1_000_000_000
NONE = GpuReadings("none", why="not asked")


def below_a_second(n: int, each_s: float) -> Histogram:
    """`n` observations that took so long each."""
    return Histogram((1.0, inf), (float(n), float(n)), n * each_s)


def sample(at_s: float, *, running: float = 3, kv: float = 0.25, n: int = 0) -> ServerSample:
    """After `n` requests of 100 ms TTFT, 40 ms of it in the queue and 25 ms in prefill."""
    histograms = {
        "ttft": below_a_second(n, 0.1),
        "queue": below_a_second(n, 0.04),
        "prefill": below_a_second(n, 0.025),
    }
    return ServerSample(
        int(at_s * S),
        running=running,
        waiting=0.0,
        kv_usage=kv,
        histograms=histograms,
        **summed_fields(histograms),
    )


def values_of(seen: TargetState, now_s: float = 100.0) -> dict[str, float]:
    """As a page has them: name and labels in one string."""
    found = {}
    page = render_metrics(TARGET, target_values(seen, int(now_s * S)))
    for (name, labels), value in lines_of(page).items():
        words = [name.removeprefix("harness_"), *(f"{key}={text}" for key, text in labels)]
        found[" ".join(words)] = value
    return found


CACHE = {"engines": 2, "kv_tokens": 64_000}
ENGINES = {"engine 0": sample(99.5), "engine 1": sample(99.5, running=5, kv=0.5)}
UP = TargetState(up=True, took_s=0.004, samples=(sample(99.5),), cache=CACHE)
BASE = {
    "target_up": 1,
    "target_sample_age_seconds": 0.5,
    "target_scrape_duration_seconds": 0.004,
    "server_kv_tokens": 64_000,
    "server_kv_free_tokens": 48_000,  # three quarters
}


@pytest.mark.parametrize(
    ("seen", "want"),
    [
        (TargetState(), {"target_up": 0}),
        (TargetState(given={"max_num_seqs": 8}), {"target_up": 0}),
        (UP, BASE),
        # two engines of 8 seats hold 16, of which 3 are taken
        (
            replace(UP, given={"max_num_seqs": 8}),
            {**BASE, "server_max_num_seqs source=given": 16, "server_slots_free": 13},
        ),
        (
            replace(
                UP, given={"max_num_seqs": 8}, read={"max_num_seqs": 4}
            ),  # the server knows best
            {**BASE, "server_max_num_seqs source=read": 8, "server_slots_free": 5},
        ),
        (
            replace(UP, given={"max_num_seqs": 1}),
            {**BASE, "server_max_num_seqs source=given": 2, "server_slots_free": 0},
        ),
        (
            replace(UP, samples=(replace(sample(99.5), engine_cpu_s=7.5),)),
            {**BASE, "engine_cpu_seconds_total": 7.5},
        ),
        (
            replace(UP, samples=(replace(sample(99.5), replicas=ENGINES),)),
            {
                **BASE,
                "server_engine_running engine=0": 3,
                "server_engine_running engine=1": 5,
                "server_engine_waiting engine=0": 0,
                "server_engine_waiting engine=1": 0,
                "server_engine_kv_usage_ratio engine=0": 0.25,
                "server_engine_kv_usage_ratio engine=1": 0.5,
            },
        ),
        (
            replace(UP, cache={}, samples=(sample(99.5, kv=nan),)),
            {k: v for k, v in BASE.items() if "kv" not in k},
        ),
    ],
)
def test_target(seen, want):
    """What is not known has no line."""
    assert values_of(seen) == want


def test_seats_are_inferred():
    """Six scrapes with 12 running while others wait: no seat is free."""
    full = [replace(sample(at_s, running=12), waiting=4.0) for at_s in range(94, 100)]
    found = values_of(replace(UP, samples=tuple(full)))
    assert found["server_max_num_seqs source=inferred"] == 12
    assert found["server_slots_free"] == 0


def with_ttft(scraped: ServerSample, n: int, total_s: float) -> ServerSample:
    """The same, with `n` first tokens that took so long together."""
    ttft = Histogram((1.0, inf), (float(n), float(n)), total_s)
    return replace(scraped, histograms={**scraped.histograms, "ttft": ttft})


def test_ttft_is_split_over_the_last_minute():
    """Of the requests since 40 s; those before are left out."""
    old = with_ttft(sample(10, n=5), 0, 0.0)
    first = with_ttft(sample(40, n=5), 5, 50.0)  # 10 s each, long ago
    last = with_ttft(sample(99, n=25), 25, 52.0)
    found = values_of(replace(UP, samples=(old, first, last)))
    parts = {k: v for k, v in found.items() if "ttft" in k}
    assert parts == {
        "server_ttft_mean_seconds": pytest.approx(0.1),  # 2 s in 20 requests
        "server_ttft_part_mean_seconds part=queue": pytest.approx(0.04),
        "server_ttft_part_mean_seconds part=prefill": pytest.approx(0.025),
        "server_ttft_part_mean_seconds part=rest": pytest.approx(0.035),
    }


def test_an_h200s_recorded_readings():
    """Every figure in base units, equal to what NVML said; one line for each throttle reason."""
    nvml = Recorded()
    source = NvmlGpus.open(nvml)
    gpus = [GpuInfo.of(said) for said in source.gpus()]
    source.read(nvml.go_to(2))
    at_ns = nvml.go_to(3)
    text = render_metrics(GPU, gpu_values(gpus, source.read(at_ns), at_ns + S // 2))
    figures = {}
    throttled = {}
    for (name, labels), value in lines_of(text).items():
        if "throttled" in name:
            throttled[dict(labels)["reason"]] = value
        elif "info" not in name:
            figures[name.removeprefix("harness_gpu_")] = value
    assert figures == {
        "sample_age_seconds": 0.5,
        "utilization_ratio": 0.99,
        "memory_utilization_ratio": 0.23,
        "memory_used_bytes": 1_704_853_504,
        "memory_bytes": 143_771 * 2**20,
        "power_watts": 692.465,
        "energy_joules_total": 4806.272,
        "sm_clock_hertz": 1.44e9,
        "memory_clock_hertz": 3.201e9,
        "temperature_celsius": 59,
        # 1.045,749,862 s, 16,232,516 bytes received and 245,743,808 sent
        "pcie_receive_bytes_per_second": pytest.approx(16_232_516 / 1.045749862),
        "pcie_transmit_bytes_per_second": pytest.approx(245_743_808 / 1.045749862),
    }
    off = dict.fromkeys(REASON_LABELS.values(), 0.0)
    assert throttled == off | {"power_cap": 1.0}
    info = (
        ("driver", "580.159.04"),
        ("gpu", "0"),
        ("name", "NVIDIA H200"),
        ("uuid", "GPU-12345678"),
    )
    assert lines_of(text)["harness_gpu_info", info] == 1


def test_another_machines_gpus_and_engine_through_our_exporter():
    """What NVML and the process table said there is what a run reads here, in our units again."""
    nvml = Recorded()
    source = NvmlGpus.open(nvml)
    gpus = [GpuInfo.of(said) for said in source.gpus()]
    source.read(nvml.go_to(2))
    (there,) = source.read(nvml.go_to(3))
    seen = TargetState(up=True, samples=[ServerSample(0, engine_cpu_s=7.5)])
    text = render_metrics(GPU, gpu_values(gpus, [there], there.at_ns))
    text += render_metrics(TARGET, target_values(seen, 0))
    with little_server(lambda _path, _body: http(text, kind="text/plain")) as server:
        found = open_gpus(f"http://127.0.0.1:{server.port}", [])
        assert found.source is not None
        (here,) = found.source.read(there.at_ns)
        samples = [ServerSample(1), ServerSample(1, engine_cpu_s=1.0)]  # the second: seen from here
        told = [found.with_engine_cpu(sample).engine_cpu_s for sample in samples]
        found.source.close()
    assert found.found == tuple(gpus)
    got = asdict(here)
    want = asdict(there)
    assert got.pop("throttled") == want.pop("throttled")
    assert got == pytest.approx(want, nan_ok=True)
    assert told == [7.5, 1.0]


def test_figures_that_a_gpu_lacks_have_no_line():
    """NaN is nothing: a query finds no series instead of a wrong one."""
    nvml = Recorded(lacks=("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetFieldValues"))
    source = NvmlGpus.open(nvml)
    at_ns = nvml.go_to(0)
    samples = source.read(at_ns)
    text = render_metrics(GPU, gpu_values([], samples, at_ns))
    assert b"energy" not in text
    assert b"pcie" not in text
    assert b"harness_gpu_power_watts" in text


SAYS = b"""\
vllm:num_requests_running{engine="0"} 3
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:generation_tokens_total{engine="0"} 100
vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="1000"} 1
"""
INFO = {"vllm_config": {"scheduler_config": {"max_num_seqs": 5}}}


def reader(port: int) -> TargetReader:
    """Of a server on this machine."""
    return TargetReader(
        TargetAccess(Address.parse(f"http://127.0.0.1:{port}"), api_key="s3cret"), {}
    )


def test_a_target_is_read_lost_and_found_again():
    """Its flags are asked for once per life; what it said before is gone when it is."""
    answers = {"/metrics": SAYS}

    def reply(path: str, _body: object) -> bytes:
        if path.startswith("/server_info"):
            return http(INFO)
        return http(answers["/metrics"], kind="text/plain")

    with little_server(reply) as server:
        target = reader(server.port)
        for _ in range(3):
            target.read()
        text = render_page(target, GpuReader(NONE))
        lines = lines_of(text)
        asked = [path.partition("?")[0] for path in server.paths]
        answers["/metrics"] = SAYS.replace(b" 100", b" 7")  # it was restarted between two scrapes
        target.read()
        again = len(target.seen.samples)
    assert asked == ["/metrics", "/server_info", "/metrics", "/metrics"]
    assert lines["harness_server_kv_tokens", ()] == 16_000
    assert lines["harness_server_kv_free_tokens", ()] == 8_000
    assert lines["harness_server_max_num_seqs", (("source", "read"),)] == 5
    assert lines["harness_server_slots_free", ()] == 2
    assert again == 1
    assert b"s3cret" not in text
    check_lost(target)


def check_lost(target: TargetReader) -> None:
    """Its server has ended: it is down, and nothing else is said of it."""
    target.read()
    assert target.why.startswith("nothing listens at http://127.0.0.1:")
    info = ("harness_target_info", (("target", target.seen.target),))
    assert lines_of(render_page(target, GpuReader(NONE))) == {
        ("harness_target_up", ()): 0.0,
        info: 1.0,
    }
    assert re.fullmatch(r"127\.0\.0\.1:\d+", target.seen.target)


def test_a_server_that_is_no_vllm():
    """It answers, and still it is not up: it has none of the figures."""
    with little_server(lambda *_: http(b"go_goroutines 12\n", kind="text/plain")) as server:
        target = reader(server.port)
        target.read()
        target.close()
    assert target.why == (
        f"http://127.0.0.1:{server.port}/metrics answers 200 without a metric of vLLM's: expected "
        "a vLLM server; look at it with curl."
    )


def test_labels_are_escaped_and_families_without_a_figure_left_out():
    """As the text format wants it, read back by two parsers."""
    rows = [MetricDefinition(key, key, "gauge", "with \\ and\nline", ("x",)) for key in "abcd"]
    values = {
        "a": {('q"\\\n',): 1.5, ("y",): nan},
        "b": {("y",): nan},
        "d": {("p",): inf, ("m",): -inf, ("w",): 2.0**60},
    }
    text = render_metrics(rows, values)
    assert lines_of(text) == {
        ("a", (("x", 'q"\\\n'),)): 1.5,
        ("d", (("x", "p"),)): inf,
        ("d", (("x", "m"),)): -inf,
        ("d", (("x", "w"),)): 2.0**60,
    }
    assert [line for line in text.splitlines() if line.startswith(b"#")] == [
        b"# HELP a with \\\\ and\\nline",
        b"# TYPE a gauge",
        b"# HELP d with \\\\ and\\nline",
        b"# TYPE d gauge",
    ]


def test_names_keep_prometheus_rules():
    """Prefix, base units, no colon, `_total` on counters alone; every name once."""
    rows = [row for some in METRIC_DEFINITIONS.values() for row in some]
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    for row in rows:
        assert row.name.startswith("harness_"), row.name
        assert ":" not in row.name
        assert row.name.endswith("_total") == (row.kind == "counter"), row.name
        other_units = [unit for unit in ("_ms", "_mib", "_pct", "_mhz", "_ns") if unit in row.name]
        assert other_units == [], row.name


def test_promtool_likes_the_page():
    """`promtool check metrics` of a target and an H200, without a remark."""
    nvml = Recorded()
    source = NvmlGpus.open(nvml)
    gpus = [GpuInfo.of(said) for said in source.gpus()]
    source.read(nvml.go_to(2))
    at_ns = nvml.go_to(3)
    samples = (sample(40, n=5), sample(99, n=25))
    seen = replace(UP, samples=samples, given={"max_num_seqs": 8})
    text = render_metrics(TARGET, target_values(seen, 100 * S))
    readings = source.read(at_ns)
    text += render_metrics(GPU, gpu_values(gpus, readings, at_ns))
    assert promtool("check", "metrics", stdin=text) == ""


def test_a_reading_of_a_gpu_has_its_series():
    """What GpuSample holds and what the exporter serves are one list."""
    names = {one.name for one in GPU}
    assert {f"harness_{series}" for series, _ in GPU_SERIES.values()} <= names
