"""What an engine in simulated time can be short of: whose time passes, and what doubling does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from planted_bottlenecks import RESOURCES, bottleneck

from harness.diagnosis.server_window import server_figures
from harness.engine.config import EngineConfig
from harness.metrics.metrics import itl, ttft
from harness.units import MS, SECOND
from lab.api_servers import FrontEnd
from lab.closed_loop import ClosedLoop, Traffic

US = 1_000
PLAIN = EngineConfig(max_num_seqs=16, jitter=0.0)
TRAFFIC = Traffic(64, 32, 0.0)  # all requests alike
USERS = 12


def played(config: EngineConfig, users: int = USERS) -> tuple[ClosedLoop, dict[str, float]]:
    """20 s; what the last 10 of them showed: cores, shares, p95 in ms."""
    loop = ClosedLoop(config, TRAFFIC, 1, observe=True)
    loop.set_users(users)
    samples = []
    for second in range(20):
        loop.advance((second + 1) * SECOND)
        gpu = loop.gpu_sample()
        samples.append(loop.sample())
    table = loop.table(10 * SECOND, loop.now_ns)
    server = server_figures(samples[10:])
    first = ttft(table).ns
    gaps = itl(table).ns
    return loop, {
        "api": server.api_server_cores,
        "engine": server.engine_cores,
        "gpu": gpu.util_pct / 100,
        "ttft": float(np.quantile(first[np.isfinite(first)], 0.95)) / MS,
        "gap": float(np.median(gaps)) / MS,
        "tokens": float(table.tokens.mean()),
        "server_ttft": 1e3 * server.ttft_mean_s,
        "queue": 1e3 * server.queue_mean_s,
    }


def test_without_costs_nobody_has_any() -> None:
    """The GPU works all the time, the processes cost nothing, each event carries one token."""
    _, seen = played(PLAIN)
    assert seen["api"] == 0
    assert seen["engine"] == 0
    assert seen["tokens"] == 1
    assert seen["gpu"] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("spins", "cores"), [(False, 0.5), (True, 1.0)])
def test_the_engines_process_holds_the_gpu_up(spins: bool, cores: float) -> None:
    """As much CPU time as GPU time in each step: half of the time each, or a core if it spins."""
    alone = played(PLAIN)[1]["gap"]
    _, seen = played(replace(PLAIN, engine_step_ns=int(alone * MS), engine_spins=spins))
    assert seen["gap"] == pytest.approx(2 * alone, rel=0.02)
    assert seen["gpu"] == pytest.approx(0.5, abs=0.02)
    assert seen["engine"] == pytest.approx(cores, abs=0.02)


def test_an_api_server_at_its_limit() -> None:
    """200 requests a second at most by 5 ms each: first tokens wait for it, not for the engine."""
    quick = EngineConfig(model="qwen2.5-1.5b", max_num_seqs=256, jitter=0.0)
    loop, seen = played(replace(quick, front_request_ns=5 * MS), users=200)
    assert seen["api"] == pytest.approx(1, abs=0.01)
    assert loop.sample().requests_total / 20 == pytest.approx(200, rel=0.05)
    assert seen["ttft"] > 10 * seen["queue"]
    two = played(replace(quick, front_request_ns=5 * MS, api_server_count=2), users=200)[1]
    assert two["ttft"] < 0.7 * seen["ttft"]


def test_what_waits_for_the_api_server_is_merged() -> None:
    """An event costs more than a step lasts for all: events carry several tokens."""
    gap = played(PLAIN)[1]["gap"]
    _, seen = played(replace(PLAIN, front_event_ns=int(1.5 * gap * MS / USERS)))
    assert 1.4 < seen["tokens"] < 2.1


def test_prompts_computed_elsewhere_cost_nothing() -> None:
    """Every other prompt: half of the prompt tokens are gone from the steps."""
    heavy = replace(PLAIN, front_request_ns=1)
    here = ClosedLoop(heavy, Traffic(1024, 4, 0.0), 1)
    apart = ClosedLoop(replace(heavy, prompts_elsewhere=True), Traffic(1024, 4, 0.0), 1)
    for loop in (here, apart):
        loop.set_users(8)
        loop.advance(20 * SECOND)
    assert apart.sample().requests_total > 1.5 * here.sample().requests_total


@pytest.mark.parametrize("name", RESOURCES)
def test_a_doubled_resource_is_another_engine(name: str) -> None:
    """What is doubled is a valid configuration, and not the one before."""
    for seed in range(7):
        engine = bottleneck(seed).engine
        assert RESOURCES[name].doubled(engine) != engine


def test_turns_of_an_api_server() -> None:
    """Alone, a request costs the same in any number of turns."""
    engine = replace(PLAIN, front_request_ns=10 * MS)
    waits = []
    for one in (engine, replace(engine, front_turns=5), replace(engine, front_request_ns=0)):
        loop = ClosedLoop(one, Traffic(512, 8, 0), 1)
        loop.set_users(1)
        loop.advance(5 * SECOND)
        seen = loop.table(0, loop.now_ns)
        waits.append(seen.at_ns[0] - seen.sent_ns[0])
    assert [wait - waits[2] for wait in waits] == [10 * MS, 10 * MS, 0]


def test_prompts_leave_a_tokenizer_together() -> None:
    """Of five at once the first comes alone; it takes the others three and one at a time."""
    engine = replace(PLAIN, front_tokenizer_ns=10 * MS, front_tokenizer_batch=3)
    front = FrontEnd(engine)
    for number in range(5):
        front.request(number, number)
    assert front.next_ns() == 0
    front.work(SECOND)
    assert sorted(front.ready) == [
        (10 * MS, 0, 0),
        (40 * MS, 1, 1),
        (40 * MS, 2, 2),
        (40 * MS, 3, 3),
        (50 * MS, 4, 4),
    ]
    assert front.cpu_ns == 50 * MS
    assert front.next_ns() == -1


def test_recorded_lengths() -> None:
    """They are drawn in random order, each once before any comes again."""
    draws = Traffic(recorded=((100, 1), (200, 2), (300, 3))).lengths(1)
    got = [next(draws) for _ in range(6)]
    assert sorted(got[:3]) == sorted(got[3:]) == [(100, 1), (200, 2), (300, 3)]


def test_several_api_servers_show_no_cpu() -> None:
    """VLLM's own metrics do not add them up."""
    config = replace(PLAIN, front_event_ns=US, api_server_count=2)
    assert np.isnan(played(config)[1]["api"])
