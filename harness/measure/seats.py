"""How many requests the server runs at once at most, seen from outside: vLLM does not export it.

While requests wait although KV blocks are free, every seat is taken: what runs is their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import isnan, nan
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.samples import ServerSample

ENOUGH: Final = 5  # samples with every seat taken
FULL: Final = 0.9  # of the KV blocks: then these bind, not the seats
NEAR: Final = 0.1  # below the most that ran: as near as a scrape between two steps comes
FLAT: Final = 0.8  # of the samples with waiting requests are that near


class Source(StrEnum):
    """Who says what `max_num_seqs` is."""

    GIVEN = "given"  # with --server-flag
    READ = "read"  # the server, or we started it
    INFERRED = "inferred"  # from what ran while requests waited
    UNKNOWN = ""  # nobody


@dataclass(frozen=True, slots=True)
class MaxNumSeqs:
    """How many requests an engine runs at once at most: vLLM's flag."""

    value: int | None = None  # requests, of one engine; null: not known
    source: Source = Source.UNKNOWN  # who says so
    engines: int = 1  # that have so many each

    @property
    def slots(self) -> float:
        """Of all engines together; NaN: not known."""
        return self.value * self.engines if self.value else nan


def inferred_seats(samples: Sequence[ServerSample]) -> int | None:
    """Of all engines together; None when no seat was ever waited for, or something else binds.

    A request that waits in a single scrape has only just come.
    """
    full = [
        b.running
        for a, b in pairwise(samples)
        if min(_waiting(a), _waiting(b)) >= 1
        and not _fullest(b) >= FULL
        and not b.preemptions_total > a.preemptions_total
    ]
    most = max(full, default=0.0)
    flat = [running for running in full if most - running <= max(NEAR * most, 1)]
    if len(flat) < max(ENOUGH, FLAT * len(full)):
        return None
    return round(most)


def flat_share(samples: Sequence[ServerSample]) -> float:
    """Of the readings in which requests wait, those with `running` near its most; NaN: none wait.

    Where every seat is taken it is 1: what runs stands still however many wait.
    """
    most = max((s.running for s in samples if not isnan(s.running)), default=0.0)
    seen = [s.running for s in samples if _waiting(s) >= 1]
    if not seen:
        return nan
    return sum(most - running <= max(NEAR * most, 1) for running in seen) / len(seen)


def _waiting(sample: ServerSample) -> float:
    """For a seat or a block, where the server tells these apart."""
    return sample.waiting if isnan(sample.waiting_capacity) else sample.waiting_capacity


def _fullest(sample: ServerSample) -> float:
    return sample.kv_usage if isnan(sample.kv_usage_fullest) else sample.kv_usage_fullest
