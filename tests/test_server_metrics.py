"""The embedded engine's /metrics: what a known set of requests must have counted and summed."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Any

import pytest
from engine_client import MODEL, QUICK, Connection, ask, metrics, request

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.records.folder_reader import NUMBER_FIELDS
from harness.server import http_exchange as exchange
from harness.server.access import TargetAccess
from harness.server.address import Address
from harness.server.probe import probe
from harness.wire.vllm_metrics import server_sample

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPLETIONS = "/v1/completions"
# (prompt tokens, output tokens, stream): 3 + 16 + 40 + 5 + 64 = 128 and 1 + 2 + 30 + 7 + 20 = 60
ASKED = ((3, 1, True), (16, 2, True), (40, 30, True), (5, 7, False), (64, 20, True))
N = len(ASKED)
TIMES = ("ttft", "queue", "prefill", "decode", "inference", "e2e", "gap")
SERIES = {
    "ttft": "vllm:time_to_first_token_seconds",
    "queue": "vllm:request_queue_time_seconds",
    "prefill": "vllm:request_prefill_time_seconds",
    "decode": "vllm:request_decode_time_seconds",
    "inference": "vllm:request_inference_time_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
    "gap": "vllm:inter_token_latency_seconds",
}
ENGINES = {
    "quick": (QUICK, 0.0),
    "one seat": (EngineConfig(model=MODEL, gpu="h200", max_num_seqs=1, time_scale=0.5), 0.0),
    # 64 tokens of prompt in chunks of at most 16
    "chunks": (EngineConfig(model=MODEL, gpu="h200", max_num_seqs=4, max_num_batched_tokens=16), 0),
    "merged": (EngineConfig(model=MODEL, gpu="h200", stream_interval=4), 0.0),
    "front end": (EngineConfig(model=MODEL, gpu="h200", front_end_ns=4_000_000), 0.004),
}


@pytest.fixture(scope="module", params=ENGINES)
def played(request: pytest.FixtureRequest) -> Iterator[tuple[dict[str, float], list[Any], float]]:
    """After ASKED, all at once, to an engine: its figures, its oracle, its front end's seconds."""
    config, front_s = ENGINES[request.param]
    with start_engine(config) as engine:
        connections = [Connection(engine.url) for _ in ASKED]
        for connection, asked in zip(connections, ASKED, strict=True):
            connection.sock.sendall(ask_for(*asked))
        assert [connection.answer().status for connection in connections] == [200] * N
        for connection in connections:
            connection.sock.close()
        sends = ask(engine.url, "/oracle", method="GET").json["requests"]
        yield metrics(engine.url), sends, front_s


def ask_for(prompt: int, output: int, stream: bool, word: str = "w") -> bytes:
    """A request; prompts of different words share nothing."""
    body = {"model": MODEL, "prompt": " ".join([f"{word}{prompt}"] * prompt)}
    return request(COMPLETIONS, body | {"max_tokens": output, "stream": stream})


Played = tuple[dict[str, float], list[Any], float]


COUNTS = {
    "vllm:prompt_tokens_total": 128,
    "vllm:generation_tokens_total": 60,
    'vllm:request_success_total{,finished_reason="length"}': N,
    'vllm:request_success_total{,finished_reason="abort"}': 0,
    'vllm:num_requests_waiting_by_reason{,reason="capacity"}': 0,
    'vllm:engine_sleep_state{,sleep_state="awake"}': 1,
    "vllm:iteration_tokens_total_sum": 128 + 60,
    "vllm:num_requests_running": 0,
    "vllm:num_requests_waiting": 0,
    "vllm:kv_cache_usage_perc": 0,
    "vllm:num_preemptions_total": 0,
    "vllm:prefix_cache_queries_total": 128,
    "vllm:prefix_cache_hits_total": 0,
    **{f"{SERIES[name]}_count": N for name in TIMES if name != "gap"},
    f"{SERIES['gap']}_count": 60 - N,  # one fewer than tokens in each request
}


def test_counts(played: Played) -> None:
    """Every counter is exact as soon as the last answer is there, and every gauge is back at 0."""
    assert {series: played[0][series] for series in COUNTS} == COUNTS


def test_what_a_run_reads_of_it() -> None:
    """What a diagnosis needs, and the flags: no vLLM is needed.

    It is alone, does not speculate, estimates no FLOPs and rejects nobody: vLLM has more series.
    """
    with start_engine(QUICK) as engine:
        access = TargetAccess(Address.parse(engine.url))
        sample = server_sample(exchange.fetch(access, "/metrics").body, 0)
        known = probe(access, "completions")
    assert sample is not None
    assert [name for name in NUMBER_FIELDS if not isnan(getattr(sample, name))] == [
        *("running", "waiting", "waiting_capacity", "waiting_deferred"),
        *("kv_usage", "kv_usage_fullest", "awake", "preemptions_total"),
        *("prompt_tokens_total", "generation_tokens_total", "requests_total"),
        *("prefix_queries_total", "prefix_hits_total", "api_cpu_s", "started_s"),
        *("ttft_sum_s", "ttft_count", "queue_sum_s", "queue_count"),
        *("prefill_sum_s", "prefill_count"),
    ]
    assert set(sample.finished) == {"stop", "length", "abort", "error", "repetition"}
    times = {"ttft", "itl", "e2e", "queue", "prefill", "decode", "inference"}
    assert set(sample.histograms) == times | {"step_tokens"}
    assert known.flags["max_num_seqs"] == QUICK.max_num_seqs
    assert known.cache["kv_tokens"] == QUICK.blocks * QUICK.block_size


def test_buckets(played: Played) -> None:
    """Buckets never fall, and the last one is the count."""
    figures = played[0]
    buckets = {}
    for name in TIMES:
        prefix = f"{SERIES[name]}_bucket{{"
        buckets[name] = [n for key, n in figures.items() if key.startswith(prefix)]
    assert buckets == {name: sorted(found) for name, found in buckets.items()}
    last = {name: found[-1] for name, found in buckets.items()}
    assert last == {name: figures[f"{SERIES[name]}_count"] for name in TIMES}


def test_sums(played: Played) -> None:
    """Without a preemption the parts add up: nothing of a request's time is left over."""
    figures, _, front_s = played
    ttft, queue, prefill, decode, inference, e2e, gap = (
        figures[f"{SERIES[name]}_sum"] for name in TIMES
    )
    assert ttft == pytest.approx(N * front_s + queue + prefill)
    assert inference == pytest.approx(prefill + decode)
    assert e2e == pytest.approx(ttft + decode)
    assert gap == pytest.approx(decode)
    assert min(prefill, decode) > 0


def test_the_oracle_agrees(played: Played) -> None:
    """Tokens sent are tokens counted; nothing was sent before the engine had it."""
    figures, sends, _ = played
    assert sum(sum(one["tokens"]) for one in sends) == figures["vllm:generation_tokens_total"]
    sent = sorted(sum(one["tokens"]) for one in sends)
    assert sent == sorted(out for _, out, _ in ASKED)
    lives_ns = [one["before_ns"][-1] - one["arrived_ns"] for one in sends]
    e2e_s = sum(lives_ns) / 1e9
    slew_s = 0.001 * N  # the engine's times are monotonic, the oracle's are not
    assert e2e_s > figures[f"{SERIES['e2e']}_sum"] - slew_s


@pytest.mark.parametrize(
    ("caching", "steps", "want"),
    # one block: 16 tokens; at least one token of a prompt is always computed
    [
        (True, [40, 40], [(40, 0), (80, 32)]),
        (True, [32, 32], [(32, 0), (64, 16)]),
        (True, [15, 15], [(15, 0), (30, 0)]),
        (True, [40, -1, 40], [(40, 0), (40, 0), (80, 0)]),  # -1: /reset_prefix_cache
        (True, [40, 40, -1, 40, 40], [(40, 0), (80, 32), (80, 32), (120, 32), (160, 64)]),
        (False, [40, 40], [(0, 0), (0, 0)]),
    ],
)
def test_prefix_cache(caching: bool, steps: list[int], want: list[tuple[int, int]]) -> None:
    """Queries and hits in tokens, so far; the answer says what was cached of its own prompt."""
    config = EngineConfig(model=MODEL, gpu="h200", enable_prefix_caching=caching)
    got = []
    said = []
    with start_engine(config) as engine, Connection(engine.url) as connection:
        for words in steps:
            if words < 0:
                assert connection.ask("/reset_prefix_cache").status == 200
            else:
                connection.sock.sendall(ask_for(words, 2, stream=False))
                said.append(cached(connection.answer().json))
            now = metrics(engine.url)
            names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
            got.append(tuple(int(now[name]) for name in names))
    assert got == want
    assert sum(said) == want[-1][1]


def cached(answer: dict[str, Any]) -> int:
    """Tokens of the prompt that its usage says were cached."""
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
