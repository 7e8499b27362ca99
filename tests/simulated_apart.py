"""Prefill apart from decode in simulated time: the best ratio, the one that is named, the gain.

Each draw is a model on a GPU, 2 to 8 of them, a load, a link and limits of TTFT and ITL. The truth
is the most users that meet both limits with each ratio, and with all engines together.

`gain_answer` is of the gain that arithmetic says, with its interval: the engines are faster or
slower than arithmetic knows, by factors that are drawn as the interval assumes.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from math import ceil, log, sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from harness.engine.config import EngineConfig
from harness.engine.shapes import MODELS, Roofline, roofline
from harness.memory.apart_gain import HALF_A_USER, SPEED_SPREAD, gain
from harness.memory.cards import GPUS
from harness.memory.prefill_apart import Limits, Replica, layouts
from harness.metrics.statistics import t_quantile
from harness.units import SECOND
from lab.closed_loop import Traffic
from lab.pools import Pools

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIGURATIONS: Final = 50
HARDWARE: Final = (
    ("qwen2.5-7b", "h100"), ("llama-3.1-8b", "h100"), ("llama-3.1-8b", "a100"),
    ("qwen2.5-14b", "h200"), ("llama-3.2-3b", "l40s"),
)  # fmt: skip
GAIN_SEEDS: Final = 3
TOGETHER: Final = 0  # as the number of engines that prefill
SETTLED_NS: Final = 8 * SECOND
TRUTH_NS: Final = 32 * SECOND
MEASURED_NS: Final = 24 * SECOND
PRECISION: Final = 0.03
STEP: Final = 1.25  # until the knee lies between two numbers of users
MOST_USERS: Final = 4096
BUILT: Final = range(5000, 5050)  # of `gain_answer`, looked at while the arithmetic was written
UNSEEN: Final = range(5050, 5100)  # asked once, afterwards
DIGITS: Final = 4


class Drawn(NamedTuple):
    """Engines, what is sent to them, and what was promised."""

    engine: EngineConfig
    traffic: Traffic
    gpus: int
    link_bytes_per_s: float
    limits: Limits


def drawn(seed: int) -> Drawn:
    """The configuration of a seed."""
    rng = np.random.default_rng([20_261, seed])
    model, gpu = HARDWARE[rng.integers(len(HARDWARE))]
    traffic = Traffic(
        prompt_tokens=int(np.exp(rng.uniform(np.log(512), np.log(3072)))),
        output_tokens=int(np.exp(rng.uniform(np.log(48), np.log(384)))),
        variation=float(rng.choice([0.1, 0.3, 0.5])),
        most=8192,
    )
    engine = EngineConfig(model=model, gpu=gpu, max_num_seqs=256, block_size=64, seed=seed)
    link = float(rng.choice([12.5e9, 25e9, 50e9, 200e9]))
    # Limits that one request alone meets, and a few dozen at once do not.
    alone = _replica(engine, traffic)
    ttft_s = alone.prefill_s * rng.uniform(4, 12) + alone.kv_bytes / link
    itl_s = rng.uniform(1.3, 3) / alone.alone_tokens_s
    return Drawn(engine, traffic, int(rng.integers(2, 9)), link, Limits(ttft_s, itl_s))


def _replica(engine: EngineConfig, traffic: Traffic) -> Replica:
    """What one engine can do, as its step times say."""
    model = MODELS[engine.model]
    steps = roofline(model, GPUS[engine.gpu])
    context = traffic.prompt_tokens + traffic.output_tokens // 2
    room = engine.blocks * engine.block_size // (traffic.prompt_tokens + traffic.output_tokens)
    users = min(engine.max_num_seqs, room)
    return Replica(
        prompt_tokens=traffic.prompt_tokens,
        answer_tokens=traffic.output_tokens,
        prefill_tokens_s=SECOND / steps.token_ns,
        users=users,
        user_tokens_s=SECOND / steps.step_ns(users, users * context, users),
        step_tokens=engine.max_num_batched_tokens,
        kv_bytes=model.kv_bytes_per_token * traffic.prompt_tokens,
        alone_tokens_s=SECOND / steps.step_ns(1, context, 1),
        variation=traffic.variation,
    )


def knee(given: Drawn, prefill: int, seed: int, until_ns: int, guess: float) -> float:
    """The most users that meet both limits, to PRECISION; 0: none. `guess`: where it may lie."""

    def holds(users: int) -> bool:
        pools = Pools(
            given.engine,
            given.traffic,
            prefill,
            given.gpus - prefill,
            link_bytes_per_s=given.link_bytes_per_s,
            seed=seed,
        )
        pools.start(users)
        pools.advance(until_ns)
        seen = pools.latencies(SETTLED_NS)
        is_soon = seen.ttft_ns <= given.limits.ttft_s * SECOND
        return is_soon and seen.itl_ns <= given.limits.itl_s * SECOND

    low = 0
    high = MOST_USERS
    users = max(round(guess), 1)
    while high - low > max(PRECISION * low, 1):
        if holds(users):
            low = users
            following = ceil(users * STEP) if high == MOST_USERS else round(sqrt(low * high))
        else:
            high = users
            following = round(sqrt(low * high)) if low else int(users / STEP)
        users = min(max(following, low + 1), high - 1)
    return float(low)


def answer(seed: int) -> dict[str, Any]:
    """The users of each ratio, that which is named, and the gain over all together, measured."""
    given = drawn(seed)
    replica = _replica(given.engine, given.traffic)
    ways = layouts(replica, given.gpus, given.link_bytes_per_s, given.limits)
    named = max(ways, key=lambda way: way.users)
    users = {way.prefill: knee(given, way.prefill, 1, TRUTH_NS, way.users) for way in ways}
    together = knee(given, TOGETHER, 1, TRUTH_NS, named.users / 2)
    gains = []
    for seed_of_gain in range(10, 10 + GAIN_SEEDS):
        of_named = knee(given, named.prefill, seed_of_gain, MEASURED_NS, named.users)
        of_together = knee(given, TOGETHER, seed_of_gain, MEASURED_NS, together)
        gains.append(_log_ratio(of_named, of_together))
    return {
        "gpus": given.gpus,
        "users": [users[prefill] for prefill in sorted(users)],
        "together": together,
        "named": named.prefill,
        "gain": _interval(gains),
        "true_gain": _log_ratio(users[named.prefill], together),
    }


def _log_ratio(users: float, others: float) -> float:
    """Half a user more for each: the knee lies between two numbers of users."""
    return log((users + 0.5) / (others + 0.5))


def _interval(gains: list[float]) -> list[float]:
    """The mean and its 95% interval; what the precision of both searches leaves open is in it."""
    mean = fmean(gains)
    error = sqrt(stdev(gains) ** 2 + 2 * PRECISION**2) / sqrt(len(gains))
    off = t_quantile(0.975, len(gains) - 1) * error
    return [mean, mean - off, mean + off]


def cases() -> Iterator[tuple[int]]:
    return ((seed,) for seed in range(CONFIGURATIONS))


def gain_answer(seed: int) -> dict[str, Any]:
    """What is chosen, the gain with its interval, and the gain in long runs."""
    given = drawn(seed)
    replica = _replica(given.engine, given.traffic)
    ways = layouts(replica, given.gpus, given.link_bytes_per_s, given.limits)
    named = max(ways, key=lambda way: way.users)
    found = gain(replica, named, given.link_bytes_per_s, given.limits)
    real = _with_real_speeds(given, seed)
    apart = knee(real, named.prefill, 1, TRUTH_NS, named.users)
    together = knee(real, TOGETHER, 1, TRUTH_NS, named.users / found.likely)
    true_gain = (apart + HALF_A_USER) / (together + HALF_A_USER)
    return {
        "gpus": given.gpus,
        "choose": found.choice.value,
        "gain": [round(value, DIGITS) for value in (found.likely, found.low, found.high)],
        "true_gain": round(true_gain, DIGITS),
    }


def _with_real_speeds(given: Drawn, seed: int) -> Drawn:
    """The same with engines that are as fast as they are drawn."""
    rng = np.random.default_rng([20_263, seed])
    prefill, decode = np.exp(SPEED_SPREAD * rng.standard_normal(2))
    steps = roofline(MODELS[given.engine.model], GPUS[given.engine.gpu])
    real = Roofline(
        base_ns=steps.base_ns / decode,
        weights_ns=steps.weights_ns / decode,
        kv_token_ns=steps.kv_token_ns / decode,
        token_ns=steps.token_ns / prefill,
        sequence_ns=steps.sequence_ns / decode,
    )
    return given._replace(engine=replace(given.engine, measured_step=astuple(real)))


def gain_cases() -> Iterator[tuple[int]]:
    return ((seed,) for seed in (*BUILT, *UNSEEN))
