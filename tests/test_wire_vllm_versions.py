"""Pages that vLLM 0.11 to 0.32 wrote under load, and pages of others, read as what they are."""

from __future__ import annotations

import gzip
import re
from math import isnan
from pathlib import Path

import pytest

from harness.diagnosis.server_window import missing_figures, server_figures
from harness.units import SECOND
from harness.wire.kv_cache import (
    NO_BLOCKS,
    SEVERAL,
    cache_config,
    cache_summary,
    lacking,
    models_on,
)
from harness.wire.prometheus_text import parse_metrics
from harness.wire.vllm_metrics import server_sample

DATA = Path(__file__).parent / "data"
PAGES = {
    path.name.removesuffix(".metrics.txt.gz"): gzip.decompress(path.read_bytes()).decode()
    for path in sorted((DATA / "metrics-pages").glob("*.metrics.txt.gz"))
} | {"0.32 in Rust": (DATA / "rust_frontend_metrics.txt").read_text()}
# 0.32 on a CPU, 0.26 on two of four H200s, which had served by themselves before
NIXL_PAGES = {
    path.name.removesuffix(".txt.gz"): gzip.decompress(path.read_bytes()).decode()
    for path in (DATA / "metrics-pages").glob("vllm-*-nixl-*.txt.gz")
}
RAY = (DATA / "metrics-pages" / "vllm_ray.txt").read_text()
TWO_ENGINES = (DATA / "metrics-pages" / "vllm_dp2.txt").read_text()


def at_the_start(page: str) -> str:
    """The page before any request: every series of vLLM's is 0."""
    return re.sub(r"^(vllm:(?!cache_config).*) \S+$", r"\1 0", page, flags=re.MULTILINE)


def sums(page: str, name: str) -> float:
    """A figure as grep and awk would find it."""
    return sum(one.value for one in parse_metrics(page, {name}))


@pytest.mark.parametrize(
    ("version", "requests", "split_ms", "tokens"),
    [
        # mean TTFT, its queue and its prefill; prompt tokens, those computed, generated ones
        ("0.11.0", 143, (47.054, 0.027, 36.961), (65025, None, 5355)),
        ("0.15.1", 322, (28.441, 0.007, 21.306), (87794, None, 13013)),
        ("0.18.1", 289, (41.814, 0.010, 25.889), (89742, 46734, 11571)),
        ("0.22.1", 417, (52.026, 0.015, 36.613), (92171, 52747, 17234)),
        ("0.26.0", 520, (66.122, 0.013, 38.885), (92363, 58827, 21421)),
        ("0.32 in Rust", 586, (117.101, 99.302, 9.338), (39842, 39842, 18501)),
    ],
)
def test_a_page_under_load(
    version: str,
    requests: int,
    split_ms: tuple[float, float, float],
    tokens: tuple[int, int | None, int],
) -> None:
    """TTFT's parts and the tokens of the audit; nothing that a verdict needs is missing."""
    page = PAGES[version]
    before = server_sample(at_the_start(page), 0)
    after = server_sample(page, SECOND)
    assert before is not None
    assert after is not None
    got = server_figures([before, after])
    parts_ms = (1e3 * got.ttft_mean_s, 1e3 * got.queue_mean_s, 1e3 * got.prefill_mean_s)
    assert [round(part, 3) for part in parts_ms] == list(split_ms)
    assert after.requests_total == after.ttft_count == requests
    prompts, computed, generated = tokens
    assert after.prompt_tokens_total == prompts
    assert after.generation_tokens_total == generated
    # counted a second way by vLLM itself
    assert sums(page, "vllm:request_prompt_tokens_sum") == prompts
    assert sums(page, "vllm:request_generation_tokens_sum") == generated
    assert after.histograms["itl"].count == generated - requests
    assert got.prompt_tokens_per_s == (computed or prompts)
    assert missing_figures([after]) == []


@pytest.mark.parametrize(
    ("name", "requests", "split_ms", "tokens", "hits", "sums_s", "kv_tokens"),
    [
        # mean TTFT, its queue and its prefill; prompt tokens, those computed, generated ones; the
        # share that came from elsewhere; decoding, and the KV caches on their way here
        (
            "vllm-0.32-nixl-prefill",
            95,
            (11492.954, 2449.188, 5095.889),
            (18852, 18852, 95),
            0,
            (0, 0),
            131_072,
        ),
        (
            "vllm-0.32-nixl-decode",
            87,
            (3017.135, 1470.4, 453.821),
            (17012, 0, 544),
            1,
            (196.611, 85.06),
            131_072,
        ),
        (
            "vllm-0.26-nixl-prefill",
            7936,
            (254.498, 6.349, 135.507),
            (3_099_730, 3_099_730, 364_632),
            0,
            (4528.412, 0),
            87_184,
        ),
        (
            "vllm-0.26-nixl-decode",
            4621,
            (181.525, 12.645, 54.919),
            (2_225_736, 1_801_146, 562_334),
            0.190764,
            (5929.429, 19.375),
            87_184,
        ),
    ],
)
def test_a_page_of_one_role(
    name: str,
    requests: int,
    split_ms: tuple[float, float, float],
    tokens: tuple[int, int, int],
    hits: float,
    sums_s: tuple[float, float],
    kv_tokens: int,
) -> None:
    """Of a server that prefills and one that decodes what NIXL brings."""
    page = NIXL_PAGES[name]
    before = server_sample(at_the_start(page), 0)
    after = server_sample(page, SECOND)
    assert before is not None
    assert after is not None
    got = server_figures([before, after])
    parts_ms = (1e3 * got.ttft_mean_s, 1e3 * got.queue_mean_s, 1e3 * got.prefill_mean_s)
    assert [round(part, 3) for part in parts_ms] == list(split_ms)
    counted = (after.prompt_tokens_total, got.prompt_tokens_per_s, after.generation_tokens_total)
    assert counted == tokens
    assert after.requests_total == after.ttft_count == after.histograms["decode"].count == requests
    assert got.external_hit_share == hits
    assert [round(after.histograms[key].sum, 3) for key in ("decode", "transfer")] == list(sums_s)
    # only a server that may fetch KV caches says how many it fetches, and not yet in 0.26
    assert isnan(after.kv_fetching) == (name != "vllm-0.32-nixl-decode")
    assert missing_figures([after]) == []
    assert cache_summary(cache_config(page))["kv_tokens"] == kv_tokens


@pytest.mark.parametrize("version", PAGES)
def test_the_kv_cache_of_a_version(version: str) -> None:
    """A GiB of 512 bytes a token; the front end in Rust does not tell, and that is said."""
    page = PAGES[version]
    cache = cache_summary(cache_config(page, "tiny"))
    said = lacking(page, cache)
    if "Rust" in version:
        assert cache == {}
        assert len(said) == 1
        assert "the size of its KV cache (no vllm:cache_config_info), when it started" in said[0]
    else:
        assert cache["kv_tokens"] == 2_097_152
        assert cache["kv_blocks"] == 16_384
        assert said == ()


@pytest.mark.parametrize(
    ("version", "flops"), [("0.18.1", 0), ("0.26.0", 0), ("0.32 in Rust", 100288991232)]
)
def test_flops_that_nobody_estimates(version: str, flops: float) -> None:
    """VLLM writes the counters but leaves them at 0 without --enable-mfu-metrics: not known."""
    page = PAGES[version]
    samples = [server_sample(at_the_start(page), 0), server_sample(page, SECOND)]
    assert samples[1].flops_total == flops
    got = server_figures(samples)
    assert isnan(got.flops_per_s) == (flops == 0)
    assert isnan(got.memory_bytes_per_s) == (flops == 0)


def test_several_api_servers() -> None:
    """0.11 to 0.18 do not know the blocks then: the tokens are unknown, and that is said."""
    page = PAGES["0.15.1"].replace('num_gpu_blocks="16384"', 'num_gpu_blocks="None"')
    cache = cache_summary(cache_config(page))
    assert cache["block_size"] == 128
    assert cache["kv_blocks"] is None
    assert cache["kv_tokens"] is None
    assert lacking(page, cache) == (NO_BLOCKS,)


@pytest.mark.parametrize(
    ("replicas", "blocks", "tokens"),
    [
        # data parallelism: the front end adds its engines up and says the sum for each of them
        ([TWO_ENGINES], 1000, 16_000),
        ([PAGES["0.26.0"] * 2], 16_384, 2_097_152),
        (
            [TWO_ENGINES.replace('1",num_gpu_blocks="1000"', '1",num_gpu_blocks="900"')],
            1900,
            30_400,
        ),
        ([PAGES["0.11.0"], PAGES["0.26.0"]], 32_768, 4_194_304),
        # layers that share blocks: vLLM's own number of tokens, since 0.26
        (
            [PAGES["0.26.0"].replace('size_tokens="2097152"', 'size_tokens="986895"')],
            16_384,
            986_895,
        ),
        ([PAGES["0.26.0"], PAGES["0.32 in Rust"]], None, None),
    ],
)
def test_kv_tokens_of_several(replicas: list[str], blocks: int | None, tokens: int | None) -> None:
    """Engines of a page, and replicas with a page each."""
    cache = cache_summary(*map(cache_config, replicas))
    assert cache["kv_blocks"] == blocks
    assert cache["kv_tokens"] == tokens


def doubled(page: str) -> str:
    """Each line twice, as a gateway writes that joins two answers."""
    return "".join(f"{line}\n{line}\n" for line in page.splitlines())


def for_model(page: str, name: str) -> str:
    """The page of a server of another model, as a router adds it: without its process."""
    lines = [line for line in page.splitlines() if not line.startswith("process_")]
    return "\n".join(lines).replace('model_name="tiny"', f'model_name="{name}"')


def with_exemplars(page: str) -> str:
    """As OpenMetrics has them behind a value, with labels and a brace of their own."""
    exemplar = r'\1 # {trace_id="4bf92f}",x="1"} 0.43 1520879607.789'
    return re.sub(r"^(vllm:.*_(?:bucket|total)\S* \S+)$", exemplar, page, flags=re.MULTILINE)


def from_ray(page: str) -> str:
    """As Ray Serve writes them, with labels of its own."""
    return page.replace("vllm:", "ray_vllm_").replace("{engine", '{ReplicaId="r1",engine')


PAGE = PAGES["0.22.1"]


@pytest.mark.parametrize(
    "page",
    [
        doubled(PAGE),
        PAGE + for_model(PAGES["0.26.0"], "other"),  # a router's, of two servers
        with_exemplars(PAGE),
        from_ray(PAGE),
        PAGE.replace("vllm:", "ray_vllm:"),
        PAGE.replace("\n", "\r\n"),
        # --model is a LoRA adapter, or an alias
        PAGE.replace('model_name="tiny"', 'model_name="base"'),
    ],
    ids=["doubled", "two models", "exemplars", "Ray", "Ray, colon", "CRLF", "alias"],
)
def test_a_page_of_others(page: str) -> None:
    """The same figures as on vLLM's own page: neither more nor fewer."""
    assert repr(server_sample(page, 9, model="tiny")) == repr(server_sample(PAGE, 9))


def test_the_cache_behind_a_router() -> None:
    """VLLM's line of it names no model: whose it is cannot be told."""
    page = PAGE + for_model(PAGES["0.26.0"], "other")
    assert models_on(page) == ["other", "tiny"]
    assert cache_summary(cache_config(page, "tiny")) == {}
    assert lacking(page, {}) == (SEVERAL,)


def test_none_of_the_models() -> None:
    """Another model's figures are nobody's: there is no sample."""
    page = PAGE + for_model(PAGES["0.26.0"], "other")
    assert server_sample(page, 9, model="third") is None
    assert server_sample(page, 9) is not None  # an exporter shows them all


def test_the_page_of_ray_serve() -> None:
    """By a public recording of it: `ray_vllm:`, with the older name of the KV usage beside it."""
    got = server_sample(RAY, 9, model="org/m")
    assert got is not None
    assert got.running == 3
    assert got.waiting == 2
    assert got.kv_usage == 0.25
    assert got.requests_total == 1
    assert round(got.ttft_sum_s, 4) == 0.3133
    assert cache_summary(cache_config(RAY))["kv_tokens"] == 116_496
