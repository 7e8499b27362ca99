"""Seeded engine configurations: what the knee search is tested on.

Four kinds of knee (slots, KV, prefill, decode) with limits that people choose (TTFT of 200 ms to
2 s, ITL of 12 to 50 ms). A draw says nothing about where its knee lies; the test keeps those whose
true knee is between 4 and 400 users, which its default search range can see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from harness.engine.config import EngineConfig
from harness.metrics.slo import Slo
from harness.units import MS
from lab.closed_loop import Traffic

KINDS: Final = ("slots", "kv", "prefill", "decode")
HARDWARE: Final = (
    ("qwen2.5-1.5b", "l4"), ("qwen2.5-7b", "l40s"), ("llama-3.2-3b", "a100"),
    ("llama-3.1-8b", "a100"), ("llama-3.1-8b", "h100"), ("qwen2.5-14b", "h100"),
    ("qwen2.5-14b", "h200"), ("qwen2.5-32b", "h200"),
)  # fmt: skip
TTFT_MS: Final = (200, 300, 500, 1000, 2000)
ITL_MS: Final = (12, 15, 20, 25, 30, 40, 50)


@dataclass(frozen=True, slots=True)
class Configuration:
    """An engine, what is sent to it, and what was promised."""

    kind: str
    engine: EngineConfig
    traffic: Traffic
    slos: tuple[Slo, ...]


def configuration(seed: int) -> Configuration:
    """The configuration of this seed; kinds take turns."""
    rng = np.random.default_rng([20_260, seed])
    kind = KINDS[seed % len(KINDS)]
    model, gpu = HARDWARE[rng.integers(len(HARDWARE))]
    traffic = Traffic(
        prompt_tokens=int(
            rng.choice([512, 1024, 2048] if kind == "prefill" else [64, 128, 256, 512])
        ),
        output_tokens=int(rng.choice([16, 32, 64] if kind == "prefill" else [32, 64, 128, 256])),
        variation=float(rng.choice([0.1, 0.3, 0.6])),
        most=4096,
    )
    engine = EngineConfig(
        model=model,
        gpu=gpu,
        max_num_seqs=int(np.exp(rng.uniform(np.log(8), np.log(192)))) if kind == "slots" else 512,
        max_num_batched_tokens=int(rng.choice([1024, 2048, 8192])),
        max_model_len=4096,
        num_gpu_blocks=_blocks(rng, traffic) if kind == "kv" else 0,
        front_end_ns=int(rng.integers(1, 6)) * MS,
        jitter=float(rng.choice([0.01, 0.03, 0.06])),
        seed=seed,
    )
    ttft = Slo("ttft", 0.95, int(rng.choice(TTFT_MS)) * MS)
    itl = Slo("itl", 0.95, int(rng.choice(ITL_MS)) * MS)
    slos = (itl,) if kind == "decode" else (ttft,)
    return Configuration(kind, engine, traffic, slos)


def _blocks(rng: np.random.Generator, traffic: Traffic) -> int:
    """A KV cache for 8 to 100 mean requests, and for the longest one at least."""
    seats = np.exp(rng.uniform(np.log(8), np.log(100)))
    mean = traffic.prompt_tokens + traffic.output_tokens
    return max(int(seats * mean / 16), 4096 // 16)
