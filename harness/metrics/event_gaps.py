"""The gaps between token-bearing events, per event and per token, as arrays in ns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from harness.core.arrays import Ints


class Events(Protocol):
    """Token-bearing events of some requests, flat: of a RecordTable, or those just arrived."""

    @property
    def offsets(self) -> Ints:
        """The events of request i are `offsets[i]` up to `offsets[i + 1]`."""

    @property
    def at_ns(self) -> Ints:
        """When each arrived."""

    @property
    def not_before_ns(self) -> Ints:
        """Each arrived after this instant; an exact stamp equals `at_ns`."""

    @property
    def tokens(self) -> Ints:
        """How many tokens each carried."""


@dataclass(frozen=True, slots=True)
class TokenGaps:
    """Gaps between consecutive events of a request; all arrays have one entry per gap."""

    end: Ints  # flat index of the event that ends it
    at_ns: Ints  # when it ended
    ns: Ints  # its length by the stamps
    min_ns: Ints
    max_ns: Ints


def event_gaps(events: Events) -> TokenGaps:
    """From each event of a request to its next one, however many tokens they carry."""
    at, low, offsets = events.at_ns, events.not_before_ns, events.offsets
    # Every event ends the gap since its predecessor, except the first of each request.
    inner = np.ones(len(at), bool)
    inner[offsets[:-1][offsets[1:] > offsets[:-1]]] = False
    end = np.flatnonzero(inner)
    at_ns, before_ns = at[end], at[end - 1]
    min_ns = (low[end] - before_ns).clip(min=0)
    return TokenGaps(end, at_ns, at_ns - before_ns, min_ns, at_ns - low[end - 1])


def token_gaps(events: Events) -> TokenGaps:
    """As `event_gaps`, per token: a gap ended by k tokens counts as k gaps of a k-th each."""
    gaps = event_gaps(events)
    tokens = events.tokens[gaps.end].clip(min=1)
    if (tokens == 1).all():
        return gaps
    min_ns, max_ns = gaps.min_ns // tokens, gaps.max_ns // tokens
    columns = (gaps.end, gaps.at_ns, gaps.ns // tokens, min_ns, max_ns)
    return TokenGaps(*(np.repeat(column, tokens) for column in columns))
