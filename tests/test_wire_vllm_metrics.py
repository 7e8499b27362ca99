"""vLLM's /metrics become one sample: in every spelling, over engines and API servers, or not."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isnan
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.records.folder_reader import from_rows, to_row
from harness.records.histogram import Histogram
from harness.records.samples import ServerSample
from harness.wire.kv_cache import cache_config
from harness.wire.vllm_metrics import server_sample, sum_samples
from harness.wire.vllm_series import SERIES, SERIES_NAMES

if TYPE_CHECKING:
    from harness.records.series import Series

# as vLLM 0.5 (V0) wrote them
OLD = """\
# HELP vllm:cache_config_info information of cache_config
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="27896"} 1.0
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_waiting{model_name="m"} 2.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:num_preemptions_total{model_name="m"} 1.0
vllm:generation_tokens_total{model_name="m"} 500.0
vllm:request_success_total{finished_reason="stop",model_name="m"} 4.0
vllm:request_success_total{finished_reason="length",model_name="m"} 5.0
vllm:time_per_output_token_seconds_bucket{le="0.01",model_name="m"} 90.0
vllm:time_per_output_token_seconds_bucket{le="0.025",model_name="m"} 100.0
vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 101.0
vllm:time_per_output_token_seconds_count{model_name="m"} 101.0
vllm:time_per_output_token_seconds_sum{model_name="m"} 1.5
"""
# as 0.32 writes them, two engines
NEW = """\
process_start_time_seconds 1.7952802e+09
process_cpu_seconds_total 7.5
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 5.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 9.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 0.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="capacity"} 7.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="deferred"} 2.0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="weights_offloaded"} 0.0
vllm:engine_sleep_state{engine="1",model_name="m",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="1",model_name="m",sleep_state="weights_offloaded"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.79e+09
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 300.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 4.0
vllm:request_success_total{engine="1",finished_reason="length",model_name="m"} 5.0
vllm:request_success_total{engine="1",finished_reason="abort",model_name="m"} 1.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01",model_name="m"} 10.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="m"} 20.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 20.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 0.5
vllm:inter_token_latency_seconds_bucket{engine="1",le="0.01",model_name="m"} 1.0
vllm:inter_token_latency_seconds_bucket{engine="1",le="+Inf",model_name="m"} 4.0
vllm:inter_token_latency_seconds_count{engine="1",model_name="m"} 4.0
vllm:inter_token_latency_seconds_sum{engine="1",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="900",swap_space="None"} 1.0
vllm:cache_config_info{_guard="True",block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
"""
STALE = """\
vllm:kv_cache_usage_perc{engine="0",pid="7"} 0.5
vllm:kv_cache_usage_perc{engine="0",pid="8"} 0
vllm:kv_cache_usage_perc{engine="0",pid="9"} 0.25
vllm:kv_cache_usage_perc{engine="1",pid="7"} 0.25
"""
BOTH_NAMES = """\
vllm:gpu_prefix_cache_queries_total{engine="0"} 32
vllm:gpu_prefix_cache_queries_created{engine="0"} 1.7537953269352946e+09
vllm:prefix_cache_queries_total{engine="0"} 32
"""
COUNTED = """\
vllm:generation_tokens_total{engine="0",api="0"} 10
vllm:generation_tokens_total{engine="0",api="1"} 5
"""
WANT_OLD = ServerSample(
    9,
    running=3.0,
    waiting=2.0,
    kv_usage=0.25,
    kv_usage_fullest=0.25,
    preemptions_total=1.0,
    generation_tokens_total=500.0,
    requests_total=9.0,
    finished={"stop": 4.0, "length": 5.0},
    histograms={"itl": Histogram((0.01, 0.025, inf), (90.0, 100.0, 101.0), 1.5)},
)
WANT_NEW = ServerSample(
    9,
    running=8.0,
    waiting=9.0,
    waiting_capacity=7.0,
    waiting_deferred=2.0,
    kv_usage=0.5,
    kv_usage_fullest=0.75,
    awake=0.0,
    requests_total=10.0,
    prefix_queries_total=400.0,
    api_cpu_s=7.5,
    started_s=1795280200.0,
    finished={"length": 9.0, "abort": 1.0},
    histograms={"itl": Histogram((0.01, inf), (11.0, 24.0), 0.75)},
)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (OLD, WANT_OLD),
        (NEW, WANT_NEW),
        (NEW.replace("vllm:", "vllm_"), WANT_NEW),  # re-exported
    ],
    ids=["0.5", "0.32, two engines", "underscores"],
)
def test_a_whole_scrape(text: str, want: ServerSample) -> None:
    """What the server says is in the sample, what it does not say is NaN."""
    got = server_sample(text.encode(), 9)
    assert got is not None
    assert repr(replace(got, replicas={})) == repr(want)  # NaN is not equal to itself


def test_each_of_several_engines() -> None:
    """Beside their sum, by its label; behind a balancer with the name of the server."""
    got = server_sample(NEW, 9, 0)
    assert got is not None
    running = {name: engine.running for name, engine in got.replicas.items()}
    assert running == {"engine 0": 3.0, "engine 1": 5.0}
    usage = [engine.kv_usage for engine in got.replicas.values()]
    assert usage == [0.25, 0.75]
    other = server_sample(OLD, 9, 0)
    assert other is not None
    assert other.replicas == {}
    both = sum_samples({"http://a": got, "http://b": other})
    assert both.running == 11.0
    assert list(both.replicas) == ["http://a engine 0", "http://a engine 1", "http://b"]


def written(series: Series, name: str) -> str:
    """A line or a histogram's three that one spelling of a series makes, of value 3."""
    labels = f'{{{series.where[0]}="{series.where[1]}"}}' if series.where[0] else ""
    labels = f'{{{series.by}="length"}}' if series.by else labels
    if series.kind != "histogram":
        return f"{name}{labels} 3\n"
    stem = name.removesuffix("_bucket")
    return f'{stem}_bucket{{le="+Inf"}} 3\n{stem}_count 3\n{stem}_sum 3\n'


@pytest.mark.parametrize("series", SERIES, ids=lambda series: series.key)
def test_every_spelling_is_read(series: Series) -> None:
    """Each spelling, with colon or underscore, with `_total` or not, gives the figure of 3."""
    for names in series.names():
        for name in names:
            if name.endswith(("_sum", "_count")):
                continue
            assert name in SERIES_NAMES
            got = server_sample(f"vllm:num_requests_running 1\n{written(series, name)}", 9)
            if series.key == "running":
                continue  # two lines of it here: see above
            value = getattr(got, series.key, None) or got.histograms.get(series.key)
            assert value == {"finished": {"length": 3.0}}.get(
                series.key, Histogram((inf,), (3.0,), 3.0) if series.kind == "histogram" else 3.0
            )


@pytest.mark.parametrize(
    ("text", "want"),
    [
        # both names of a gauge while the old one was going away: the newer counts, once
        ("vllm:kv_cache_usage_perc 0.25\nvllm:gpu_cache_usage_perc 0.75\n", ("kv_usage", 0.25)),
        # 0.10, by a public report of a router that read both
        (BOTH_NAMES, ("prefix_queries_total", 32)),
        # three API servers of one engine, 0.9.2: one of the three is up to date
        (STALE, ("kv_usage", 0.375)),
        # what each API server counted adds up
        (COUNTED, ("generation_tokens_total", 15.0)),
        # NaN is no figure of ours to hide
        ("vllm:kv_cache_usage_perc NaN\nvllm:num_requests_running 2\n", ("running", 2.0)),
    ],
)
def test_several_lines_of_one_figure(text: str, want: tuple[str, float]) -> None:
    """How they become one."""
    assert getattr(server_sample(text, 1), want[0]) == want[1]


def test_engines_with_different_buckets() -> None:
    """Those that both have are kept: the counts there are right."""
    first = {"0.1": 1, "0.5": 2, "+Inf": 4}
    second = {"0.5": 8, "+Inf": 16}
    text = ""
    for engine, buckets in enumerate((first, second)):
        for le, n in buckets.items():
            labels = f'engine="{engine}",le="{le}"'
            text += f"vllm:time_to_first_token_seconds_bucket{{{labels}}} {n}\n"
    text += "vllm:time_to_first_token_seconds_sum 2.5\n"
    got = server_sample(text, 1)
    assert got.histograms == {"ttft": Histogram((0.5, inf), (10.0, 20.0), 2.5)}
    assert got.ttft_sum_s == 2.5
    assert got.ttft_count == 20.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>busy</html>",
        "go_goroutines 12\nprocess_cpu_seconds_total 3\n",
        "sglang:num_running_reqs 3\n",
    ],
)
def test_another_server(text: str) -> None:
    """Without a series of vLLM's there is no sample; a process's own figures are nobody's."""
    assert server_sample(text, 1) is None


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (OLD, [{"block_size": "16", "cache_dtype": "auto", "num_gpu_blocks": "27896"}]),
        (NEW, [{"block_size": "16", "engine": "0", "num_gpu_blocks": "1000"},
               {"block_size": "16", "engine": "1", "num_gpu_blocks": "900"}]),
        ("vllm:num_requests_running 1\n", []),
    ],
)  # fmt: skip
def test_the_caches_configuration(text: str, want: list[dict[str, str]]) -> None:
    """One per engine in their order, without what is not set or vLLM's own business."""
    assert cache_config(text) == want


def test_what_is_not_said_is_nan() -> None:
    """A figure without a series is NaN, a histogram is missing."""
    sample = server_sample("vllm:num_requests_running 2\n", 1)
    assert sample is not None
    assert isnan(sample.waiting)
    assert "ttft" not in sample.histograms


def test_a_histogram_without_a_sum_has_no_mean() -> None:
    """How many requests there were is known, what they took is not."""
    name = "vllm:time_to_first_token_seconds"
    sample = server_sample(f'{name}_bucket{{le="1.0"}} 2\n{name}_bucket{{le="+Inf"}} 3\n', 0)
    assert sample is not None
    assert sample.ttft_count == 3
    assert isnan(sample.ttft_sum_s)
    assert isnan(sample.histograms["ttft"].mean)
    (read,), n_bad = from_rows([to_row(sample, {})])
    assert n_bad == 0
    assert isnan(read.histograms["ttft"].mean)


@pytest.mark.parametrize("le", ["x", "nan", ""])
def test_a_bucket_whose_bound_is_no_number(le: str) -> None:
    """It is said which one: without its bound a bucket belongs nowhere."""
    text = f'vllm:time_to_first_token_seconds_bucket{{le="{le}"}} 1\n'
    with pytest.raises(ValueError, match=f"time_to_first_token_seconds_bucket has .* le='{le}'"):
        server_sample(text, 1)


def test_engines_that_are_not_numbers() -> None:
    """VLLM numbers its engines; any other name is no reason to stop."""
    names = ["1", "core-0", "0", "10", "2"]
    text = "".join(f'vllm:cache_config_info{{engine="{name}"}} 1\n' for name in names)
    got = [labels["engine"] for labels in cache_config(text)]
    assert got == ["core-0", "0", "1", "2", "10"]


def test_the_page_of_the_front_end_in_rust() -> None:
    """As vLLM 0.32's `vllm-rs` wrote it after a run, histograms that nobody reads left out."""
    page = (Path(__file__).parent / "data" / "rust_frontend_metrics.txt").read_text()
    got = server_sample(page, 9)
    assert got is not None
    assert got.running == 0
    assert got.waiting == 0
    assert got.kv_usage == 0
    assert got.preemptions_total == 0
    assert got.requests_total == 586
    assert got.generation_tokens_total == 18501
    assert got.flops_total == 100288991232
    assert got.cached_prompt_tokens_total == 0
    missing = {"api_cpu_s", "started_s", "awake", "admission_rejections_total"}
    assert {name for name in missing if isnan(getattr(got, name))} == missing
    times = {"ttft", "itl", "e2e", "queue", "prefill", "decode", "inference"}
    assert set(got.histograms) == times | {"step_tokens", "preemptions", "computed_tokens"}
    assert cache_config(page) == []
