"""Seeded engines whose requests come in waves, as those of real servers do.

A prompt waits for a tokenizer that takes all waiting prompts together, and for a front end that
works on them in turns: prompts that came together leave together, are prefilled in one step, and
their clients' next requests come together again. docs/decisions/0020-waves.md has what was seen,
and how near `RECORDED` and `LIKE_H100` come to it. `engine_configurations` has engines without any
of that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from harness.engine.config import EngineConfig
from harness.metrics.slo import Slo
from harness.units import MS
from lab.closed_loop import Traffic
from lab.engine_configurations import Configuration

US: Final = 1_000
HARDWARE: Final = (
    ("qwen2.5-1.5b", "l40s"), ("qwen2.5-1.5b", "h100"), ("llama-3.2-3b", "a100"),
    ("qwen2.5-7b", "a100"), ("qwen2.5-7b", "h100"), ("llama-3.1-8b", "h100"),
    ("qwen2.5-14b", "h200"),
)  # fmt: skip
TTFT_MS: Final = (200, 300, 500, 1000, 2000)
ITL_MS: Final = (30, 40, 50, 75, 100)
KINDS: Final = ("front", "tokenizer", "both")

# vLLM 0.26 with a Qwen2 of 1.5B on an H200: fitted to the latencies and waves of its records.
RECORDED: Final = EngineConfig(
    model="qwen2.5-1.5b",
    gpu="h200",
    max_num_seqs=1024,
    jitter=0.03,
    measured_step=(348_000, 1_395_000, 5.2, 7_000, 18_700, 6_630_000, 14_760_000, 512),
    front_request_ns=4373 * US,
    front_event_ns=34 * US,
    front_turns=14,
    front_tokenizer_ns=3700 * US,
    front_tokenizer_batch=50,
    front_end_ns=342 * US,
)
# vLLM 0.26 with a Qwen2 of 7B on an H100: its front end was fitted to waves of 128 to 163 users.
LIKE_H100: Final = EngineConfig(
    model="qwen2.5-7b",
    gpu="h100",
    max_num_seqs=1024,
    jitter=0.03,
    measured_step=(564_000, 5_750_000, 21.8, 26_000, 8_050, 6_670_000, 14_000_000, 512),
    front_request_ns=8500 * US,
    front_event_ns=56 * US,
    front_turns=22,
    front_tokenizer_ns=1500 * US,
    front_tokenizer_batch=16,
    front_end_ns=4 * MS,
)
LIKE_CHAT: Final = Traffic(256, 128, 0.5)


def bare(engine: EngineConfig) -> EngineConfig:
    """The same without what makes the waves."""
    return replace(engine, front_tokenizer_ns=0, front_request_ns=0, front_event_ns=0)


def wave_configuration(seed: int) -> Configuration:
    """The configuration of this seed; what makes its waves takes turns."""
    rng = np.random.default_rng([20_262, seed])
    kind = KINDS[seed % len(KINDS)]
    model, gpu = HARDWARE[rng.integers(len(HARDWARE))]
    traffic = Traffic(
        prompt_tokens=int(rng.choice([128, 256, 512, 1024])),
        output_tokens=int(rng.choice([64, 128, 256])),
        variation=float(rng.choice([0.1, 0.3, 0.6])),
        most=4096,
    )
    slow_front = kind != "tokenizer"
    slow_tokenizer = kind != "front"
    engine = EngineConfig(
        model=model,
        gpu=gpu,
        max_num_seqs=512,
        max_num_batched_tokens=int(rng.choice([2048, 8192])),
        max_model_len=4096,
        front_end_ns=int(rng.integers(1, 6)) * MS,
        jitter=float(rng.choice([0.01, 0.03, 0.06])),
        engine_step_ns=_between(rng, 200, 1000) * US,
        engine_sequence_ns=_between(rng, 2, 20) * US,
        front_request_ns=_between(rng, *((3000, 9000) if slow_front else (500, 3000))) * US,
        front_event_ns=_between(rng, 10, 40) * US,
        front_turns=int(rng.integers(4, 25)) if slow_front else int(rng.integers(1, 9)),
        front_tokenizer_ns=_between(rng, *((4000, 13_000) if slow_tokenizer else (300, 2000))) * US,
        front_tokenizer_batch=int(rng.choice([16, 32, 64])),
        seed=seed,
    )
    ttft = Slo("ttft", 0.95, int(rng.choice(TTFT_MS)) * MS)
    itl = Slo("itl", 0.95, int(rng.choice(ITL_MS)) * MS)
    slos = (ttft, itl) if rng.integers(2) else (ttft,)
    return Configuration(kind, engine, traffic, slos)


def _between(rng: np.random.Generator, low: float, high: float) -> int:
    """Even in the logarithm."""
    return int(np.exp(rng.uniform(np.log(low), np.log(high))))
