"""Seeded configurations of which something else is short each time, and what doubling it means.

What the verdict is tested on: the truth about a configuration is the resource whose doubling moves
its simulated knee most. Every engine here has API servers and an engine process that cost CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.engine.config import EngineConfig
from harness.engine.shapes import MODELS, roofline
from harness.memory.cards import GPUS
from harness.metrics.slo import Slo
from harness.units import MS
from lab.closed_loop import Traffic
from lab.engine_configurations import HARDWARE, TTFT_MS, Configuration

if TYPE_CHECKING:
    from collections.abc import Callable

US: Final = 1_000
LONGEST: Final = 4096  # prompt and output together
SMALL: Final = (("qwen2.5-1.5b", "h100"), ("llama-3.2-3b", "h100"), ("qwen2.5-1.5b", "a100"))
SLOW: Final = (("qwen2.5-1.5b", "l4"), ("llama-3.2-3b", "l4"), ("qwen2.5-7b", "l40s"))


@dataclass(frozen=True, slots=True)
class Resource:
    """What can be doubled: the same engine with twice as much of it, and what that is in words."""

    what: str
    doubled: Callable[[EngineConfig], EngineConfig]


RESOURCES: Final[dict[str, Resource]] = {
    "batch slots": Resource(
        "`--max-num-seqs` twice as large", lambda c: replace(c, max_num_seqs=2 * c.max_num_seqs)
    ),
    "KV cache capacity": Resource(
        "twice as many KV blocks", lambda c: replace(c, num_gpu_blocks=2 * c.blocks)
    ),
    "prefill compute": Resource(
        "a GPU that multiplies twice as fast, with the same memory bandwidth",
        lambda c: replace(c, compute_scale=2 * c.compute_scale),
    ),
    "decode bandwidth": Resource(
        "a GPU that reads its memory twice as fast, with the same compute",
        lambda c: replace(c, bandwidth_scale=2 * c.bandwidth_scale),
    ),
    "prefill-decode interference": Resource(
        "a second GPU that computes every other prompt: half of the prompts disturb nobody's "
        "decoding (disaggregation of half the traffic; the transfer costs nothing)",
        lambda c: replace(c, prompts_elsewhere=True),
    ),
    "front end": Resource(
        "`--api-server-count` twice as large: each process has half of the requests",
        lambda c: replace(c, api_server_count=2 * c.api_server_count),
    ),
    "engine process": Resource(
        "half the CPU time per step and per sequence that the GPU waits for",
        lambda c: replace(
            c, engine_step_ns=c.engine_step_ns // 2, engine_sequence_ns=c.engine_sequence_ns // 2
        ),
    ),
}

# what is drawn short -> prompt tokens, output tokens, (model, GPU)
DRAWN: Final = {
    "slots": ((64, 128, 256), (16, 32, 64, 128), HARDWARE),
    "kv": ((64, 128, 256, 512), (16, 32, 64, 128), HARDWARE),
    "prefill": ((512, 1024, 1536), (8, 16, 32), HARDWARE),
    "decode": ((32, 64, 128), (128, 256, 384), SLOW),
    "interference": ((512, 1024, 1536), (64, 128, 192), HARDWARE),
    "front": ((64, 128, 256), (16, 32, 64), HARDWARE),
    "engine": ((64, 128, 256), (16, 32, 64, 128), SMALL),
}
GAPS: Final = ("decode", "interference", "engine")  # these promise gaps, a front end either


def bottleneck(seed: int) -> Configuration:
    """The configuration of this seed; what is short takes turns."""
    rng = np.random.default_rng([20_261, seed])
    kind = list(DRAWN)[seed % len(DRAWN)]
    prompts, outputs, hardware = DRAWN[kind]
    model, gpu = hardware[rng.integers(len(hardware))]
    traffic = Traffic(
        prompt_tokens=int(rng.choice(prompts)),
        output_tokens=int(rng.choice(outputs)),
        variation=float(rng.choice([0.1, 0.3, 0.6])),
        most=LONGEST,
    )
    seats = int(np.exp(rng.uniform(np.log(4), np.log(48))))
    mean = traffic.prompt_tokens + traffic.output_tokens
    blocks = max(int(seats * mean / 16), LONGEST // 16)
    has_busy_events = bool(rng.integers(2)) and kind == "front"
    engine = replace(_engine(rng, kind, has_busy_events), model=model, gpu=gpu, seed=seed)
    if kind == "slots":
        engine = replace(engine, max_num_seqs=seats)
    if kind == "kv":
        engine = replace(engine, num_gpu_blocks=blocks)
    either = bool(rng.integers(2))
    if kind in GAPS or (has_busy_events and either):
        slo = Slo("itl", 0.95, _gap_limit_us(rng, engine, kind) * US)
    else:
        slo = Slo("ttft", 0.95, int(rng.choice(TTFT_MS)) * MS)
    return Configuration(kind, engine, traffic, (slo,))


def _engine(rng: np.random.Generator, kind: str, has_busy_events: bool) -> EngineConfig:
    """What its processes cost. The order of the draws is what a seed means."""
    step_us, sequence_us = (200, 1000), (2, 10)
    request_us, event_us = (100, 500), (3, 20)
    if kind == "engine":
        step_us, sequence_us = (4000, 20_000), (30, 300)
    if kind == "front":
        request_us = (2000, 12_000)
    if has_busy_events:
        event_us = (60, 400)
    max_num_batched_tokens = int(rng.choice([1024, 2048, 8192]))
    front_end_ms = int(rng.integers(1, 6))
    jitter = float(rng.choice([0.01, 0.03, 0.06]))
    engine_step_us = _between(rng, *step_us)
    engine_sequence_us = _between(rng, *sequence_us)
    engine_spins = bool(rng.integers(2))
    front_request_us = _between(rng, *request_us)
    front_event_us = _between(rng, *event_us)
    return EngineConfig(
        max_num_seqs=256,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=LONGEST,
        num_gpu_blocks=0,
        front_end_ns=front_end_ms * MS,
        jitter=jitter,
        engine_step_ns=engine_step_us * US,
        engine_sequence_ns=engine_sequence_us * US,
        engine_spins=engine_spins,
        front_request_ns=front_request_us * US,
        front_event_ns=front_event_us * US,
    )


def _between(rng: np.random.Generator, low: float, high: float) -> int:
    """Even in the logarithm."""
    return int(np.exp(rng.uniform(np.log(low), np.log(high))))


def _gap_limit_us(rng: np.random.Generator, engine: EngineConfig, kind: str) -> int:
    """What one request alone would see, times a promise; to a tenth of a ms."""
    line = roofline(MODELS[engine.model], GPUS[engine.gpu])
    alone = line.step_ns(1, 0, 1) + engine.engine_step_ns
    low, high = {"interference": (1.5, 4.0), "decode": (1.1, 1.5)}.get(kind, (1.15, 2.0))
    return max(round(alone * rng.uniform(low, high) / US / 100), 1) * 100
