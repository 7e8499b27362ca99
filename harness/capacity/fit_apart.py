"""How `vllm-harness fit` divides `--gpus` into replicas that prefill and replicas that decode.

With `--slo` the layout with the most users is chosen, or all replicas together, or neither before
both are measured: by the interval of the gain.
"""

from __future__ import annotations

from argparse import Namespace
from math import inf, isnan, nan
from typing import TYPE_CHECKING, Final

from harness.capacity.fit_answer import Facts, Speeds, answer
from harness.engine.shapes import EFFICIENCY as REACHED
from harness.errors import ConfigError
from harness.memory.apart_gain import Choice, counted, gain
from harness.memory.prefill_apart import (
    Apart,
    Limits,
    Replica,
    choose,
    layouts,
    together_requests_s,
    transfer_s,
)
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.capacity.fit_question import Question
    from harness.metrics.slo import Slo

DEFAULT_LINK_BYTES_S: Final = 50e9  # 400 Gbit/s
P95: Final = 0.95
MS: Final = 1e3


def prefill_apart(args: Namespace, asked: Question) -> Facts:
    """Return what prefill on replicas of its own moves, costs, takes away and gains.

    Raises ConfigError for what it needs and is not known.
    """
    limits = _limits(args.slo)
    replica = _replica(args, asked, REACHED if args.slo else 1.0)
    link = args.link or DEFAULT_LINK_BYTES_S
    replica_gpus = asked.parallel.gpus
    all_gpus = args.gpus or 2 * replica_gpus  # one replica for prefill, one for decode
    replicas = max(all_gpus // replica_gpus, 1)
    together_s = together_requests_s(replica, replicas)
    ways = layouts(replica, replicas, link, limits)
    if args.slo:
        chosen = _within_limits(replica, _most(ways, limits), link, limits)
    else:
        chosen = _at_full_rates(choose(replica, replicas, link))
    return {
        "slos": [str(slo) for slo in args.slo],
        "of_peaks": REACHED if args.slo else 1.0,
        "prompt_tokens": replica.prompt_tokens,
        "answer_tokens": replica.answer_tokens,
        "kv_bytes": replica.kv_bytes,
        "link_bytes_per_s": link,
        "transfer_ms": transfer_s(replica.kv_bytes, link) * MS,
        "prefill_ms": replica.prefill_s * MS,
        "tpot_ms": MS / replica.user_tokens_s,
        "mean_gap_added_ms": replica.mean_gap_added_s * MS,
        "longest_gap_added_ms": replica.longest_gap_added_s * MS,
        "gpus_of_a_replica": replica_gpus,
        "replicas": replicas,
        "together_requests_per_s": together_s,
        "layouts": [_layout_row(way, together_s) for way in ways],
        **chosen,
    }


def _at_full_rates(way: Apart | None) -> Facts:
    """The choice without limits: that of requests/s, of which nothing is drawn."""
    return _choice(Choice.TOGETHER if way is None else Choice.APART, way) | {"gain": None}


def _within_limits(replica: Replica, best: Apart | None, link: float, limits: Limits) -> Facts:
    """The choice between the best layout and all together, by its gain."""
    if best is None:
        return _choice(Choice.NONE, None) | {"gain": None}
    found = gain(replica, best, link, limits)
    measured = {
        "prefill": best.prefill,
        "decode": best.decode,
        "of": found.of,
        "likely": found.likely,
        "ci95": [found.low, found.high],
    }
    return _choice(found.choice, best) | {"gain": measured}


def _choice(choice: Choice, way: Apart | None) -> Facts:
    chosen = way if choice is Choice.APART else None
    return {
        "choose": choice.value,
        "chosen_prefill": chosen.prefill if chosen else None,
        "chosen_decode": chosen.decode if chosen else None,
    }


def _layout_row(way: Apart, together_s: float) -> Facts:
    return {
        "prefill": way.prefill,
        "decode": way.decode,
        "requests_per_s": way.requests_s,
        "users": way.users,
        "share_of_together": way.requests_s / together_s,
        "limit": way.limit,
    }


def _most(ways: Sequence[Apart], limits: Limits) -> Apart | None:
    """The layout that holds the most; None: none keeps the limits."""
    able = [way for way in ways if way.requests_s > 0]
    return max(able, key=lambda way: counted(way, limits), default=None)


def _limits(slos: Sequence[Slo]) -> Limits:
    """Raises ConfigError for an SLO that arithmetic cannot keep."""
    limits_s = {"ttft": inf, "itl": inf}
    for slo in slos:
        if slo.metric not in limits_s or slo.q != P95:
            raise ConfigError(
                f"--slo is {slo}: expected a p95 of TTFT or of ITL, for which prefill and decode "
                "are divided; try --slo ttft_p95=500ms --slo itl_p95=50ms."
            )
        limits_s[slo.metric] = min(limits_s[slo.metric], slo.limit_ns / SECOND)
    return Limits(limits_s["ttft"], limits_s["itl"])


def _replica(args: Namespace, asked: Question, of_peaks: float) -> Replica:
    """What a replica does; `of_peaks`: the share of full rates that it reaches."""
    prompt_tokens, answer_tokens = args.prefill_apart
    context = prompt_tokens + answer_tokens
    _check_context(context, asked.max_model_len)
    speeds = Speeds(asked)
    blocks = answer(asked)["kv_blocks"]
    users = 0
    user_tokens_s = nan
    if blocks is not None:
        users = asked.layout.users_in(blocks, context, asked.slots)
    if users:
        user_tokens_s = speeds.of_users(users, context)
    if isnan(user_tokens_s) or isnan(speeds.prefill):
        raise ConfigError(
            "--prefill-apart needs GPUs whose speed is known and that hold a request: expected "
            "--gpu, and weights and KV cache that fit; try --gpu h100."
        )
    return Replica(
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        prefill_tokens_s=speeds.prefill * of_peaks,
        users=users,
        user_tokens_s=user_tokens_s * of_peaks,
        step_tokens=asked.step_tokens,
        kv_bytes=float(asked.layout.read_bytes(prompt_tokens)),
        alone_tokens_s=speeds.of_users(1, context) * of_peaks,
    )


def _check_context(context: int, limit: int | None) -> None:
    if limit and context > limit:
        half = limit // 2
        raise ConfigError(
            f"--prefill-apart asks for {context:,} tokens, above the limit of {limit:,}: "
            f"expected at most that; try --prefill-apart {half}:{half}."
        )
