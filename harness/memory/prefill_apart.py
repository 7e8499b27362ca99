"""Prefill on GPUs of its own, apart from decoding: what it moves, costs and takes away.

All by arithmetic at full rates. Tokens, bytes, seconds and requests/s, of replicas that each have
the same GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WORTH_IT: Final = 0.9  # of the requests/s of all together: beyond that loss, together is better


@dataclass(frozen=True, slots=True)
class Replica:
    """What one replica can do with requests of one length."""

    prompt_tokens: int
    answer_tokens: int
    prefill_tokens_s: float
    users: int  # that its KV cache holds
    user_tokens_s: float  # of each of these while nothing is prefilled
    step_tokens: int  # of a step at most: the longest piece of a prompt
    kv_bytes: float  # of a prompt

    @property
    def prefill_s(self) -> float:
        """The time that a prompt takes."""
        return self.prompt_tokens / self.prefill_tokens_s

    @property
    def decode_s(self) -> float:
        """The share of a replica's time that an answer takes while all its users decode."""
        return self.answer_tokens / (self.users * self.user_tokens_s)

    @property
    def prefill_share(self) -> float:
        """The share of its time that a replica prefills in, at its most requests/s."""
        return self.prefill_s / (self.prefill_s + self.decode_s)

    @property
    def mean_gap_added_s(self) -> float:
        """What prompts of others add to a mean gap between tokens, at the most requests/s."""
        return self.prefill_share / (1 - self.prefill_share) / self.user_tokens_s

    @property
    def longest_gap_added_s(self) -> float:
        """What one step with a piece of a prompt adds to a gap."""
        return min(self.prompt_tokens, self.step_tokens) / self.prefill_tokens_s


@dataclass(frozen=True, slots=True)
class Apart:
    """So many replicas prefill, the others decode."""

    prefill: int
    decode: int
    requests_s: float
    limit: str  # what ends it: prefill, decode or link


def transfer_s(kv_bytes: float, link_bytes_s: float) -> float:
    """Return the time that a prompt's KV cache takes from one replica to another."""
    return kv_bytes / link_bytes_s


def together_requests_s(replica: Replica, replicas: int) -> float:
    """Return the requests/s of replicas that each prefill and decode."""
    return replicas / (replica.prefill_s + replica.decode_s)


def apart_requests_s(replica: Replica, prefill: int, decode: int, link_bytes_s: float) -> Apart:
    """Return what a layout can do; `link_bytes_s` is of each prefilling replica."""
    limits = {
        "prefill": prefill / replica.prefill_s,
        "decode": decode / replica.decode_s,
        "link": prefill / transfer_s(replica.kv_bytes, link_bytes_s),
    }
    least = min(limits, key=limits.__getitem__)
    return Apart(prefill, decode, limits[least], least)


def layouts(replica: Replica, replicas: int, link_bytes_s: float) -> list[Apart]:
    """Return every way to divide the replicas, fewest prefilling first."""
    return [
        apart_requests_s(replica, prefill, replicas - prefill, link_bytes_s)
        for prefill in range(1, replicas)
    ]


def choose(replica: Replica, replicas: int, link_bytes_s: float) -> Apart | None:
    """Return the layout to choose; None: together, no other has WORTH_IT of its requests/s."""
    ways = layouts(replica, replicas, link_bytes_s)
    if not ways:
        return None
    best = max(ways, key=lambda way: way.requests_s)
    enough = best.requests_s >= WORTH_IT * together_requests_s(replica, replicas)
    return best if enough else None
