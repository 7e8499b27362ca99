"""Does the step add up? Little's law, and the client's counts against the server's.

A client that loses records, or a server that somebody else uses too, breaks one of the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.ledger import in_flight
from harness.measure.metrics import failed
from harness.measure.samples import within
from harness.measure.table import CANCELLED, CONNECT, OK
from harness.measure.walk import Arrivals, walk
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.evidence import Window
    from harness.measure.recorded import Recorded
    from harness.measure.samples import ServerSample
    from harness.measure.table import RecordTable

TOLERANCE: Final = 0.03  # of the tokens, beside what may be under way at the edges
WARM: Final = 0.02  # of the prompt tokens: more hits than this make a level too fast
BLOCK: Final = 16  # vLLM's default tokens in a KV block
EDGE_NS: Final = 250 * MS  # a scrape's counters are this uncertain in time


@dataclass(frozen=True, slots=True)
class Little:
    """N = X (R + Z) with Z = 0: users given, and what the records make of them."""

    n: float  # users held
    x: float  # requests that ended, 1/s
    r_s: float  # mean time in flight of these requests, s
    error: float  # (in flight by the records - users) / users


def little(table: RecordTable, window: Window) -> Little:
    """Little's law on one step. A closed loop without think time keeps every user busy."""
    start, end = window.settled_ns, window.end_ns
    ended = ~table.is_open & (table.done_ns >= start) & (table.done_ns <= end)
    r_s = float((table.done_ns - table.sent_ns)[ended].mean() / SECOND) if ended.any() else 0.0
    x = float(ended.sum()) / max(end - start, 1) * SECOND
    error = in_flight(table, start, end) / max(window.users, 1) - 1
    return Little(float(window.users), round(x, 4), round(r_s, 6), round(error, 4))


@dataclass(frozen=True, slots=True)
class Audit:
    """Output tokens of the window, by both sides."""

    client_tokens: int  # output tokens that arrived here
    server_tokens: float  # output tokens that the server generated; null: not known
    surplus: float  # the server's beyond ours, as a share of ours; null: not known
    ok: bool  # whether nobody else uses the server


def scraped(
    window: Window, samples: Sequence[ServerSample]
) -> tuple[ServerSample, ServerSample] | None:
    """The first and the last scrape inside the window that count tokens; None without two."""
    inside = [
        s
        for s in within(samples, window.settled_ns, window.end_ns)
        if not np.isnan(s.generation_tokens_total)
    ]
    return (inside[0], inside[-1]) if len(inside) > 1 else None


def between(window: Window, samples: Sequence[ServerSample]) -> Arrivals:
    """The walker that counts what arrived between the two; nothing without two."""
    ends = scraped(window, samples)
    return Arrivals(ends[0].at_ns + 1, ends[1].at_ns) if ends else Arrivals(0, -1)


def audit_tokens(
    recorded: Recorded,
    window: Window,
    samples: Sequence[ServerSample],
    arrived: Arrivals | None = None,
) -> Audit:
    """Compare tokens between the first and last scrape inside the window (None: no metrics).

    Only a *surplus* counts as somebody else: a request that failed or was cut delivers fewer.
    `arrived`: what came between the two, where it was counted already.
    """
    table, ends = recorded.table, scraped(window, samples)
    if ends is None or bool((failed(table) | (table.outcome == CANCELLED)).any()):
        return Audit(int(table.tokens.sum()), nan, nan, ok=True)
    if arrived is None:
        arrived = between(window, samples)
        walk(recorded, [arrived])
    first, last = ends
    client = arrived.tokens
    server = last.generation_tokens_total - first.generation_tokens_total
    slack = TOLERANCE * client + client * 2 * EDGE_NS / max(last.at_ns - first.at_ns, 1)
    slack += 2 * window.users
    surplus = (server - client) / max(client, 1)
    return Audit(client, server, round(surplus, 4), ok=server - client <= slack)


def prefix_surplus(
    table: RecordTable, window: Window, samples: Sequence[ServerSample], shared_tokens: int
) -> float:
    """Share of the window's prompt tokens found in the prefix cache beyond what prompts may share.

    `shared_tokens` is what every prompt begins with (chat template, the workload's system message);
    blocks are shared whole, so a block more is allowed. 0 where the server does not say.
    """
    inside = within(samples, window.settled_ns, window.end_ns)
    if len(inside) < 2:  # noqa: PLR2004 - a difference needs two
        return 0.0
    first, last = inside[0], inside[-1]
    queries = last.prefix_queries_total - first.prefix_queries_total
    hits = last.prefix_hits_total - first.prefix_hits_total
    if np.isnan(queries) or np.isnan(hits) or queries <= 0:
        return 0.0
    sent = int(((table.sent_ns >= first.at_ns) & (table.sent_ns <= last.at_ns)).sum())
    allowed = (shared_tokens + BLOCK) * (sent + window.users)
    return float(max(hits - allowed, 0) / queries)


def audit_sentence(
    recorded: Recorded,
    window: Window,
    samples: Sequence[ServerSample],
    shared_tokens: int = 0,
    arrived: Arrivals | None = None,
) -> str:
    """Why the step must not be used, or ''."""
    table = recorded.table
    warm = prefix_surplus(table, window, samples, shared_tokens)
    if warm > WARM:
        return (
            f"{warm:.0%} of the prompt tokens came from the server's prefix cache although every "
            "prompt is new: somebody repeats them, or a run with the same seed came before; try "
            "another --seed, or restart the server"
        )
    tokens = audit_tokens(recorded, window, samples, arrived)
    if not tokens.ok:
        return (
            f"the server generated {tokens.server_tokens:.0f} tokens while this client received "
            f"{tokens.client_tokens}: somebody else uses it; stop the other load"
        )
    law = little(table, window)
    backs_off = bool((table.outcome == CONNECT).any())  # users wait before they try again
    if int((table.outcome == OK).sum()) > 10 and abs(law.error) > 0.25 and not backs_off:  # noqa: PLR2004 - a quarter of the users idle
        return (
            f"{law.n * (1 + law.error):.1f} requests were under way with {law.n:.0f} users "
            "(N = X R is broken): the client cannot keep its users busy; try --processes 2"
        )
    return ""
