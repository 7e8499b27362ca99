"""Prefill on GPUs of its own, apart from decoding: what it moves, costs and takes away.

All by arithmetic: at full rates, or as far as a p95 TTFT and ITL allow. Tokens, bytes, seconds and
requests/s, of replicas that each have the same GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log, sqrt
from typing import Final

LATE: Final = 0.05  # of the requests, beyond a p95
BISECTIONS: Final = 40
BUSIEST: Final = 0.99  # of a server's time: at all of it, the wait has no end
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
    alone_tokens_s: float = inf  # of one user that decodes alone
    variation: float = 0.4  # standard deviation of the prompts' lengths over their mean

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
class Limits:
    """The p95s that are promised, in seconds."""

    ttft_s: float = inf
    itl_s: float = inf


NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Apart:
    """So many replicas prefill, the others decode."""

    prefill: int
    decode: int
    requests_s: float
    limit: str  # what ends it: prefill, decode or link
    users: float = 0.0  # who wait for their answers at that rate


def transfer_s(kv_bytes: float, link_bytes_s: float) -> float:
    """Return the time that a prompt's KV cache takes from one replica to another."""
    return kv_bytes / link_bytes_s


def together_requests_s(replica: Replica, replicas: int) -> float:
    """Return the requests/s of replicas that each prefill and decode."""
    return replicas / (replica.prefill_s + replica.decode_s)


def apart_requests_s(
    replica: Replica,
    prefill: int,
    decode: int,
    link_bytes_s: float,
    limits: Limits = NO_LIMITS,
) -> Apart:
    """Return what a layout can do; `link_bytes_s` is of each prefilling replica."""
    moved_s = transfer_s(replica.kv_bytes, link_bytes_s)
    users = users_within(replica, limits.itl_s)
    gap_s = gap_of(replica, max(users, 1))
    # After it was prefilled and moved, a request waits for a step of those that decode.
    left_s = limits.ttft_s - moved_s - gap_s
    rates = {
        "prefill": prefill / replica.prefill_s * busiest(replica, prefill, left_s),
        "decode": decode * users / (replica.answer_tokens * gap_s),
        "link": prefill / moved_s,
    }
    least = min(rates, key=rates.__getitem__)
    rate = rates[least]
    waiting = rate * (moved_s + _mean_prefilled_s(replica, prefill, rate))
    decoding = decode * decoding_at(replica, rate / decode)
    return Apart(prefill, decode, rate, least, waiting + decoding)


def decoding_at(replica: Replica, requests_s: float) -> float:
    """Return how many decode at once on a replica that gets so many requests/s."""
    # What decodes is the rate times the time of an answer, and a gap is a line over what decodes.
    alone_s = gap_of(replica, 1)
    each_s = gap_of(replica, 2) - alone_s
    tokens_s = requests_s * replica.answer_tokens
    return tokens_s * (alone_s - each_s) / (1 - tokens_s * each_s)


def gap_of(replica: Replica, users: int) -> float:
    """Return the gap between tokens where so many decode: it grows in a line with each."""
    all_s = 1 / replica.user_tokens_s
    alone_s = 1 / replica.alone_tokens_s
    if not alone_s or replica.users == 1:  # not known: as with all
        return all_s
    return alone_s + (all_s - alone_s) * (users - 1) / (replica.users - 1)


def users_within(replica: Replica, itl_s: float) -> int:
    """Return how many may decode at once so that gaps are no longer than this."""
    alone_s = gap_of(replica, 1)
    all_s = gap_of(replica, replica.users)
    if all_s <= itl_s:
        return replica.users
    if alone_s > itl_s:
        return 0
    each_s = gap_of(replica, 2) - alone_s
    return int(1 + (itl_s - alone_s) / each_s)


def busiest(replica: Replica, servers: int, ttft_s: float) -> float:
    """Return the share of its time that each may prefill in while 95% have their token by then."""
    if ttft_s == inf:
        return 1.0
    low = 0.0
    high = 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if _prefilled_s(replica, servers, middle) <= ttft_s:
            low = middle
        else:
            high = middle
    return low


def _mean_prefilled_s(replica: Replica, servers: int, requests_s: float) -> float:
    """The mean of waiting for a prefill and of the prefill itself."""
    busy = min(requests_s * replica.prefill_s / servers, BUSIEST)
    return replica.prefill_s + _waiting(servers, busy) * _mean_wait_s(replica, servers, busy)


def _waiting(servers: int, busy: float) -> float:
    """The share that has to wait."""
    return float(busy ** (sqrt(2 * (servers + 1)) - 1))


def _mean_wait_s(replica: Replica, servers: int, busy: float) -> float:
    """Of those who wait."""
    spread = (1 + replica.variation**2) / 2
    return replica.prefill_s * spread / (servers * (1 - busy))


def _prefilled_s(replica: Replica, servers: int, busy: float) -> float:
    """The p95 of waiting for a prefill and of the prefill itself.

    Sakasegawa's approximation of the wait for one of several servers; it ends at random.
    """
    own_s = replica.prefill_s * (1 + replica.variation)
    waits = _waiting(servers, busy)
    if waits <= LATE:
        return own_s
    return own_s + _mean_wait_s(replica, servers, busy) * log(waits / LATE)


def layouts(
    replica: Replica, replicas: int, link_bytes_s: float, limits: Limits = NO_LIMITS
) -> list[Apart]:
    """Return every way to divide the replicas, fewest prefilling first."""
    return [
        apart_requests_s(replica, prefill, replicas - prefill, link_bytes_s, limits)
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
