"""The gaps between token-bearing events, per event and per token, as arrays in ns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from harness.records.codec import WHY_PYTHON

if not WHY_PYTHON:
    from harness.records._arrays import gaps

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
    if WHY_PYTHON or not _contiguous(events):
        return event_gaps_in_python(events)
    n_events = len(events.at_ns)
    end, ns, min_ns, max_ns = np.empty((4, n_events), np.int64)
    n = gaps(events.offsets, events.at_ns, events.not_before_ns, end, ns, min_ns, max_ns)
    return TokenGaps(end[:n], events.at_ns[end[:n]], ns[:n], min_ns[:n], max_ns[:n])


def _contiguous(events: Events) -> bool:
    columns = (events.offsets, events.at_ns, events.not_before_ns)
    return all(column.flags.c_contiguous and column.dtype == np.int64 for column in columns)


def event_gaps_in_python(events: Events) -> TokenGaps:
    """As `_arrays.c` does."""
    # Every event ends the gap since its predecessor, except the first of each request.
    has_events = events.offsets[1:] > events.offsets[:-1]
    ends_gap = np.ones(len(events.at_ns), bool)
    ends_gap[events.offsets[:-1][has_events]] = False
    end = np.flatnonzero(ends_gap)
    at_ns = events.at_ns[end]
    before_ns = events.at_ns[end - 1]
    # An event came in (not before, at]: the shortest gap begins as late and ends as early as that
    # leaves open.
    shortest_ns = events.not_before_ns[end] - before_ns
    longest_ns = at_ns - events.not_before_ns[end - 1]
    return TokenGaps(end, at_ns, at_ns - before_ns, shortest_ns.clip(min=0), longest_ns)


def token_gaps(events: Events) -> TokenGaps:
    """As `event_gaps`, per token: a gap ended by k tokens counts as k gaps of a k-th each."""
    gaps = event_gaps(events)
    tokens = events.tokens[gaps.end].clip(min=1)
    if (tokens == 1).all():
        return gaps
    return TokenGaps(
        end=np.repeat(gaps.end, tokens),
        at_ns=np.repeat(gaps.at_ns, tokens),
        # Whole nanoseconds: what the division drops is far below the uncertainty of a stamp.
        ns=np.repeat(gaps.ns // tokens, tokens),
        min_ns=np.repeat(gaps.min_ns // tokens, tokens),
        max_ns=np.repeat(gaps.max_ns // tokens, tokens),
    )
