"""One server with several GPUs: tensor parallel (one engine), or data parallel (one for each)."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from harness.diagnosis.bottleneck import RULES
from harness.diagnosis.gpu_window import gpu_figures
from harness.diagnosis.rules.inputs import VerdictInputs
from harness.diagnosis.slots import infer_max_num_seqs
from harness.metrics.level_figures import GpuFigures, MaxNumSeqs, ServerFigures, Source
from harness.metrics.result import Level
from harness.records.folder_reader import Run
from harness.records.record_table import concat_tables
from harness.records.record_tables import Damage
from harness.records.samples import GpuSample, ServerSample
from harness.run.results import target_of_run
from harness.units import SECOND
from harness.wire.kv_cache import cache_config, cache_summary
from harness.wire.vllm_metrics import server_sample


def recorded_page(name: str) -> str:
    """A /metrics page of a real vLLM."""
    path = Path(__file__).parent / "data" / "metrics-pages" / f"{name}.txt.gz"
    return gzip.decompress(path.read_bytes()).decode()


# Of a real vLLM 0.32 on a CPU with --data-parallel-size 2 and --max-num-seqs 16, under 40 users: of
# one API server, and of one for each engine, which is the default of `vllm serve`.
PAGES = {name: recorded_page(name) for name in ("vllm-0.32-dp2", "vllm-0.32-dp2-api2")}
of_each_page = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
# Of a real vLLM 0.26 with --data-parallel-size 4 on four H200s, after a search.
FOUR_ENGINES = recorded_page("vllm-0.26-dp4-api4")
TWO_GPUS = [{"index": 0}, {"index": 1}]
TENSOR = {"tensor_parallel_size": 2, "pipeline_parallel_size": 1, "data_parallel_size": 1}
BOTH = {"tensor_parallel_size": 2, "pipeline_parallel_size": 1, "data_parallel_size": 2}


def recorded(server: dict[str, Any], gpu: dict[str, Any], scrapes: list[ServerSample]) -> Run:
    """A run folder without requests."""
    info = {"server": server, "gpu": gpu, "config": {}}
    return Run(Path(), info, concat_tables([]), [], [], scrapes, [], [], Damage())


@pytest.mark.parametrize(
    ("server", "gpu", "want"),
    [
        ({"flags": TENSOR}, {}, (1, 2)),
        ({"flags": BOTH}, {}, (1, 4)),
        ({"flags": BOTH, "replicas": ["http://a", "http://b"]}, {}, (2, 8)),
        # those that its processes compute on
        ({}, {"gpus": TWO_GPUS, "of_server": True}, (1, 2)),
        # all of the machine, of which another server may use one
        ({}, {"gpus": TWO_GPUS, "of_server": False}, (1, 0)),
        ({}, {"gpus": TWO_GPUS}, (1, 0)),  # an older folder
        # the flag that was given is not all of them; what the server shows is
        ({"flags": {"tensor_parallel_size": 1}}, {"gpus": TWO_GPUS, "of_server": True}, (1, 2)),
        ({"flags": TENSOR}, {"gpus": [*TWO_GPUS, {"index": 2}], "of_server": True}, (1, 2)),
        ({"flags": {"tensor_parallel_size": "two"}}, {}, (1, 0)),
        ({}, {}, (1, 0)),
    ],
)
def test_servers_and_gpus_of_a_target(
    server: dict[str, Any], gpu: dict[str, Any], want: tuple[int, int]
) -> None:
    """By the flags that the server shows, else by where its processes compute."""
    target = target_of_run(recorded(server, gpu, []))
    assert (target.servers, target.gpus) == want


@pytest.mark.parametrize(
    ("server", "want"),
    [
        ({"flags": {"max_num_seqs": 256}, "engines": 1}, 256),  # tensor parallel
        ({"flags": {"max_num_seqs": 256}, "engines": 2}, 512),
        ({"flags": {"max_num_seqs": 256, "data_parallel_size": 2}}, 512),  # no page says it
        (
            {"flags": {"max_num_seqs": 256, "data_parallel_size": 2}, "replicas": ["a", "b"]},
            1024,
        ),
    ],
)
def test_each_engine_has_its_slots(server: dict[str, Any], want: int) -> None:
    """As --max-num-seqs is of an engine."""
    assert target_of_run(recorded(server, {}, [])).max_num_seqs.slots == want


def test_slots_of_two_engines_that_nobody_tells() -> None:
    """8 of each, inferred from 16 that run while others wait."""
    scrapes = [
        ServerSample(i * SECOND, running=16, waiting=5, kv_usage=0.2, preemptions_total=0)
        for i in range(10)
    ]
    assert infer_max_num_seqs(scrapes, 2) == 16
    found = target_of_run(recorded({"engines": 2}, {}, scrapes)).max_num_seqs
    assert found == MaxNumSeqs(8, Source.INFERRED, 2)


def of_engines(page: str, name: str) -> list[float]:
    """The lines of a series, one of each engine."""
    found = [line for line in page.splitlines() if line.startswith(name + "{")]
    values = [float(line.rpartition(" ")[2]) for line in found]
    assert len(values) == (4 if page is FOUR_ENGINES else 2)
    return values


@of_each_page
def test_the_engines_of_a_real_server_are_one(page: str) -> None:
    """What they count adds up; of the KV cache it is the mean, and the fullest."""
    sample = server_sample(page, 0)
    assert sample is not None
    assert (sample.running, sample.waiting) == (32, 8)
    kv_usage = of_engines(page, "vllm:kv_cache_usage_perc")
    assert sample.kv_usage == pytest.approx(sum(kv_usage) / 2)
    assert sample.kv_usage_fullest == max(kv_usage)
    tokens = of_engines(page, "vllm:generation_tokens_total")
    assert (sample.generation_tokens_total, min(tokens) > 0) == (sum(tokens), True)
    first_tokens = of_engines(page, "vllm:time_to_first_token_seconds_count")
    assert sample.histograms["ttft"].count == sum(first_tokens)
    ttft_s = of_engines(page, "vllm:time_to_first_token_seconds_sum")
    assert sample.ttft_sum_s == pytest.approx(sum(ttft_s))


@of_each_page
def test_the_kv_cache_of_a_real_server(page: str) -> None:
    """The page has the blocks of both engines together, twice, and the tokens of one."""
    cache = cache_summary(cache_config(page))
    assert (cache["engines"], cache["kv_blocks"]) == (2, 4096)
    assert cache["kv_tokens"] == 2 * 262_144 == 4096 * cache["block_size"]
    # layers that share blocks: fewer tokens than the blocks would have by themselves
    shared = page.replace('size_tokens="262144"', 'size_tokens="100000"')
    assert cache_summary(cache_config(shared))["kv_tokens"] == 200_000


def test_four_engines_on_four_gpus_are_one() -> None:
    """As two on a CPU: what they count adds up, and so do their KV caches."""
    sample = server_sample(FOUR_ENGINES, 0)
    assert sample is not None
    tokens = of_engines(FOUR_ENGINES, "vllm:generation_tokens_total")
    assert sample.generation_tokens_total == sum(tokens) == 1_439_922
    prompts = of_engines(FOUR_ENGINES, "vllm:prompt_tokens_total")
    assert sample.prompt_tokens_total == sum(prompts) == 2_905_360
    ttft_s = of_engines(FOUR_ENGINES, "vllm:time_to_first_token_seconds_sum")
    assert sample.ttft_sum_s == pytest.approx(sum(ttft_s))
    cache = cache_summary(cache_config(FOUR_ENGINES))
    assert (cache["engines"], cache["kv_tokens"]) == (4, 4 * 87_184)


def test_figures_of_two_gpus() -> None:
    """Power and memory add up; how busy they are is a mean."""
    samples = []
    for at_s in range(3):
        for gpu, util_pct in enumerate((90.0, 50.0)):
            sample = GpuSample(at_s * SECOND, gpu, util_pct, power_w=300.0, memory_used_mib=4000.0)
            samples.append(sample)
    figures = gpu_figures(samples, tokens_per_s=1200.0)
    assert (figures.gpus, figures.util_pct_mean, figures.power_w) == (2, 70.0, 600.0)
    assert (figures.memory_used_mib_max, figures.j_per_output_token) == (8000.0, 0.5)


@pytest.mark.parametrize(
    ("engines", "cores", "want", "cpu"),
    [
        (1, 1.0, 0.9, "engine process CPU: 1.00 cores"),
        (2, 1.0, 0.4, "engine process CPU: 0.50 cores of each of 2"),  # both have time
        (2, 2.0, 0.9, "engine process CPU: 1.00 cores of each of 2"),
    ],
)
def test_the_cpu_of_two_engines_is_of_two_processes(
    engines: int, cores: float, want: float, cpu: str
) -> None:
    """One full core is the limit of one process, not of two together."""
    level = Level(
        1,
        40,
        end_ns=20 * SECOND,
        server=ServerFigures(samples=20, running_mean=30.0, engine_cores=cores),
        gpu=GpuFigures(util_pct_mean=30.0),
    )
    inputs = VerdictInputs.of(level, [level], "ttft", 500.0, MaxNumSeqs(engines=engines))
    found = RULES["engine process"](inputs)
    assert (found.confidence, found.evidence[0]) == (want, cpu)
