"""How `vllm-harness fit` compares ways to use `--gpus`: fewer replicas that share GPUs."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from harness.capacity.fit_answer import Facts, answer
from harness.capacity.fit_question import Question, question
from harness.memory.parallel import divides_heads
from harness.memory.verdict import DO_NOT_START, Why

MOST_SHARED: Final = 6  # powers of two, from one GPU on


def splits(args: Namespace, asked: Question) -> list[Facts]:
    """Return what `--gpus` hold as replicas of 1, 2, 4... GPUs each, as the model's heads allow."""
    if not args.gpus or asked.shape is None:
        return []
    rows = []
    for doubled in range(MOST_SHARED):
        gpus = 1 << doubled
        if args.gpus % gpus == 0 and divides_heads(gpus, asked.shape):
            rows.append(_split(args, gpus))
    return rows


def _split(args: Namespace, gpus: int) -> Facts:
    """The figures of all replicas together, where each has so many GPUs."""
    replicas = args.gpus // gpus
    replica = _answer_of_replica(args, gpus)
    users = replica["user"]["users"]
    user_tokens_s = replica["user"]["tokens_per_s_per_user"]
    if Why(replica["why"]) in DO_NOT_START:
        users = 0
        user_tokens_s = 0.0
    all_users = _times(replicas, users)
    return {
        "replicas": replicas,
        "gpus": gpus,
        "users": all_users,
        "weight_bytes": _times(replicas, replica["weight_bytes"]),
        "alone": replica["decode_tokens_per_s"],
        "tokens_per_s": _times(all_users, user_tokens_s),
    }


def _answer_of_replica(args: Namespace, gpus: int) -> Facts:
    asked = Namespace(**vars(args))
    asked.url = None  # whatever a server has now
    asked.admit = None
    asked.tensor_parallel = gpus
    asked.pipeline_parallel = 1
    asked.decode_context_parallel = 1
    asked.data_parallel = 1
    return answer(question(asked))


def _times(number: float | None, value: float | None) -> float | None:
    """The product; None where one of them is not known."""
    return None if number is None or value is None else number * value
