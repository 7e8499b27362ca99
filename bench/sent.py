"""What a server says it sent, and when: the answer key."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

NOBODY: Final = -1  # sent no id with its request
HEAD: Final = 6  # numbers before a request's times, see paced_server.c


class Sends(NamedTuple):
    """One request's sends; `tokens` is 0 when it was given up."""

    arrived_ns: int
    tokens: int
    stalled: int
    before_ns: Ints
    after_ns: Ints
    sender: int = NOBODY


def sender_ids(workers: Ints, numbers: Ints) -> Ints:
    """The ids that the paced server reads in `X-Sender: RUN-WORKER-NUMBER`."""
    return workers << 32 | numbers


@dataclass(frozen=True, slots=True)
class Sent:
    """What was sent to n requests, in order of arrival, m events in all; CLOCK_REALTIME, ns."""

    arrived_ns: Ints
    tokens: Ints
    counts: Ints  # events of each request
    before_ns: Ints  # the clock just before each send; flat
    after_ns: Ints
    senders: Ints  # the id that came with each request; NOBODY where none did
    stalled: int  # sends that a full socket delayed: their times mean nothing

    @classmethod
    def of(cls, rows: list[Sends], tokens: int) -> Sent:
        """Of the requests that asked for so many tokens and got them: no probes."""
        rows = sorted((r for r in rows if r.tokens == tokens), key=lambda r: r.arrived_ns)
        none: Ints = np.empty(0, np.int64)
        return cls(
            arrived_ns=np.array([r.arrived_ns for r in rows], np.int64),
            tokens=np.array([r.tokens for r in rows], np.int64),
            counts=np.array([len(r.before_ns) for r in rows], np.int64),
            before_ns=np.concatenate([none, *(r.before_ns for r in rows)]),
            after_ns=np.concatenate([none, *(r.after_ns for r in rows)]),
            senders=np.array([r.sender for r in rows], np.int64),
            stalled=sum(r.stalled for r in rows),
        )

    @property
    def firsts(self) -> Ints:
        """Index of each request's first event."""
        return np.cumsum(self.counts) - self.counts

    def ttft_ns(self) -> tuple[Ints, Ints]:
        """From arrival to the first token: at least, at most."""
        firsts = self.firsts
        return tuple(at[firsts] - self.arrived_ns for at in (self.before_ns, self.after_ns))

    def itl_ns(self) -> tuple[Ints, Ints]:
        """Gaps between the sends of a request: at least, at most.

        A server that is interrupted in the middle of a send does not know when it happened.
        """
        before, after = self.before_ns, self.after_ns
        later = np.ones(len(before), bool)
        later[self.firsts] = False
        later = np.flatnonzero(later)
        return before[later] - after[later - 1], after[later] - before[later - 1]


def from_bytes(data: bytes) -> list[Sends]:
    """The paced server's /oracle."""
    flat, rows, at = np.frombuffer(data, np.int64), [], 0
    while at < len(flat):
        arrived, tokens, per_event, stalled, sender, n = flat[at : at + HEAD].tolist()
        times = flat[at + HEAD : at + HEAD + 2 * n]
        whole = n == -(-tokens // per_event)
        before_ns, after_ns = times[:n], times[n:]
        rows.append(Sends(arrived, tokens if whole else 0, stalled, before_ns, after_ns, sender))
        at += HEAD + 2 * n
    return rows


def from_json(data: bytes) -> list[Sends]:
    """The embedded engine's /oracle."""
    return [
        Sends(
            r["arrived_ns"],
            sum(r["tokens"]),
            0,
            np.array(r["before_ns"], np.int64),
            np.array(r["after_ns"], np.int64),
        )
        for r in json.loads(data)["requests"]
    ]
