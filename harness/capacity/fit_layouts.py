"""How `vllm-harness fit` compares ways to use `--gpus`: replicas that share GPUs, prefill apart."""

from __future__ import annotations

import argparse
from math import isnan
from typing import Any, Final

from harness.capacity.fit_answer import Speeds, answer
from harness.capacity.fit_question import Question, question
from harness.errors import ConfigError
from harness.memory.parallel import divides_heads
from harness.memory.prefill_apart import (
    Replica,
    choose,
    layouts,
    together_requests_s,
    transfer_s,
)
from harness.memory.verdict import DO_NOT_START, Why

MOST_SHARED: Final = 6  # powers of two, from one GPU on
DEFAULT_LINK_BYTES_S: Final = 50e9  # 400 Gbit/s
MS: Final = 1e3


def splits(args: argparse.Namespace, asked: Question) -> list[dict[str, Any]]:
    """Return what `--gpus` hold as replicas of 1, 2, 4... GPUs each, as the model's heads allow."""
    if not args.gpus or asked.shape is None:
        return []
    shared = [1 << doubled for doubled in range(MOST_SHARED) if args.gpus % (1 << doubled) == 0]
    return [_split(args, gpus) for gpus in shared if divides_heads(gpus, asked.shape)]


def _split(args: argparse.Namespace, gpus: int) -> dict[str, Any]:
    alike = {
        "url": None,  # whatever a server has now
        "admit": None,
        "tensor_parallel": gpus,
        "pipeline_parallel": 1,
        "decode_context_parallel": 1,
        "data_parallel": 1,
    }
    one = answer(question(argparse.Namespace(**{**vars(args), **alike})))
    replicas, user = args.gpus // gpus, one["user"]
    users, speed = user["users"], user["tokens_per_s_per_user"]
    if Why(one["why"]) in DO_NOT_START:
        users, speed = 0, 0.0
    return {
        "replicas": replicas,
        "gpus": gpus,
        "users": None if users is None else replicas * users,
        "weight_bytes": _times(replicas, one["weight_bytes"]),
        "alone": one["decode_tokens_per_s"],
        "tokens_per_s": None if speed is None else replicas * users * speed,
    }


def _times(number: int, value: float | None) -> float | None:
    return None if value is None else number * value


def prefill_apart(args: argparse.Namespace, asked: Question) -> dict[str, Any] | None:
    """Return what prefill on replicas of its own moves, costs and takes away; None: not asked.

    Raises ConfigError for what it needs and is not known.
    """
    if not args.prefill_apart:
        return None
    replica = _replica(args, asked)
    link = args.link or DEFAULT_LINK_BYTES_S
    replicas = max((args.gpus or 2 * asked.parallel.gpus) // asked.parallel.gpus, 1)
    together = together_requests_s(replica, replicas)
    chosen = choose(replica, replicas, link)
    return {
        "prompt_tokens": replica.prompt_tokens,
        "answer_tokens": replica.answer_tokens,
        "kv_bytes": replica.kv_bytes,
        "link_bytes_per_s": link,
        "transfer_ms": transfer_s(replica.kv_bytes, link) * MS,
        "prefill_ms": replica.prefill_s * MS,
        "tpot_ms": MS / replica.user_tokens_s,
        "mean_gap_added_ms": replica.mean_gap_added_s * MS,
        "longest_gap_added_ms": replica.longest_gap_added_s * MS,
        "gpus_of_a_replica": asked.parallel.gpus,
        "replicas": replicas,
        "together_requests_per_s": together,
        "layouts": [
            {
                "prefill": way.prefill,
                "decode": way.decode,
                "requests_per_s": way.requests_s,
                "share_of_together": way.requests_s / together,
                "limit": way.limit,
            }
            for way in layouts(replica, replicas, link)
        ],
        "choose": "together" if chosen is None else "apart",
        "chosen_prefill": None if chosen is None else chosen.prefill,
        "chosen_decode": None if chosen is None else chosen.decode,
    }


def _replica(args: argparse.Namespace, asked: Question) -> Replica:
    prompt, tokens = args.prefill_apart
    if asked.max_model_len and prompt + tokens > asked.max_model_len:
        raise ConfigError(
            f"--prefill-apart asks for {prompt + tokens:,} tokens, above the limit of "
            f"{asked.max_model_len:,}: expected at most that; try --prefill-apart "
            f"{asked.max_model_len // 2}:{asked.max_model_len // 2}."
        )
    speeds = Speeds(asked)
    blocks = answer(asked)["kv_blocks"]
    users = 0 if blocks is None else asked.layout.users_in(blocks, prompt + tokens, asked.slots)
    speed = speeds.of_users(users, prompt + tokens) if users else 0.0
    if not users or isnan(speed) or isnan(speeds.compute):
        raise ConfigError(
            "--prefill-apart needs GPUs whose speed is known and that hold a request: expected "
            "--gpu, and weights and KV cache that fit; try --gpu h100."
        )
    return Replica(
        prompt_tokens=prompt,
        answer_tokens=tokens,
        prefill_tokens_s=speeds.compute,
        users=users,
        user_tokens_s=speed,
        step_tokens=asked.step_tokens,
        kv_bytes=float(asked.layout.read_bytes(prompt)),
    )
