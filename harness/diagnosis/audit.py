"""Consistency checks of a level: Little's law, and the client's token counts against the server's.

A client that loses records breaks the first; a server that has other clients breaks the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan, nan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.states import Purpose
from harness.diagnosis.client_host import UNKNOWN_HOST, HostFigures, remedy
from harness.diagnosis.server_window import counter_increase
from harness.metrics.evidence import Window, concurrency
from harness.metrics.ledger import mean_in_flight
from harness.metrics.level_figures import Audit, Little, PrefixHits
from harness.metrics.metrics import delivered_tokens, failed_requests
from harness.metrics.scan import ArrivalCounter, scan
from harness.records.record_table import CANCELLED, CONNECT, OK, RecordTable
from harness.records.samples import ServerSample, samples_within
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.core.arrays import Floats
    from harness.metrics.record_source import RecordSource


# Allowed surplus of the server's tokens, besides what may be in flight at the two scrapes.
TOKEN_TOLERANCE: Final = 0.03
# Share of the prompt tokens, which are all meant to be new: hits make TTFT too short.
MAX_PREFIX_HIT_SHARE: Final = 0.02
KV_BLOCK_TOKENS: Final = 16  # vLLM's default tokens in a KV block
SCRAPE_UNCERTAINTY_NS: Final = 250 * MS  # when a scrape's counters were read, plus or minus
MAX_LITTLE_ERROR: Final = 0.25  # allowed deviation of the requests in flight, share of the users
MIN_LITTLE_THINKS: Final = 4  # mean think times in a window; with fewer, its edges decide
MIN_LITTLE_REQUESTS: Final = 10  # finished requests; with fewer, the mean is too noisy to judge

LOWER_RATE: Final = "try a lower rate, or --processes 2"  # where the client's machine is not busy


def apply_littles_law(table: RecordTable, window: Window) -> Little:
    """Little's law for one level: a closed loop keeps every user busy, or thinking as planned."""
    start, end = window.settled_ns, window.end_ns
    ended = ~table.is_open & (table.done_ns >= start) & (table.done_ns <= end)
    r_s = float((table.done_ns - table.sent_ns)[ended].mean() / SECOND) if ended.any() else 0.0
    x = float(ended.sum()) / max(end - start, 1) * SECOND
    n = window.rate_per_s * r_s if window.rate_per_s else float(window.users)
    busy, z_s = mean_in_flight(table, start, end), 0.0
    think_ns = table.think_ns.clip(min=0)
    if think_ns.any() and ended.any():
        # Who thinks when the window begins may have asked before the records that we have: the
        # planned pauses that we see are too few, X Z is right on average, and noisy.
        z_s = float(think_ns[ended].mean() / SECOND)
        over = np.where(table.is_open, table.done_ns, table.done_ns + think_ns)
        seen = (over.clip(max=end) - table.done_ns.clip(min=start)).clip(min=0).sum()
        busy += max(float(seen) / max(end - start, 1), x * z_s)
    error = busy / (n or 1.0) - 1
    return Little(round(n, 4), round(x, 4), round(r_s, 6), round(error, 4), round(z_s, 6))


def scrapes_inside(
    window: Window, samples: Sequence[ServerSample]
) -> tuple[ServerSample, ServerSample] | None:
    """The first and the last scrape in the window with a token count; None: fewer than two."""
    inside = [
        s
        for s in samples_within(samples, window.settled_ns, window.end_ns)
        if not np.isnan(s.generation_tokens_total)
    ]
    return (inside[0], inside[-1]) if len(inside) > 1 else None


def arrivals_between(window: Window, samples: Sequence[ServerSample]) -> ArrivalCounter:
    """Counts the tokens that arrived between the two scrapes; none without two scrapes."""
    ends = scrapes_inside(window, samples)
    return ArrivalCounter(ends[0].at_ns + 1, ends[1].at_ns) if ends else ArrivalCounter(0, -1)


def audit_tokens(
    recorded: RecordSource,
    window: Window,
    samples: Sequence[ServerSample],
    arrived: ArrivalCounter | None = None,
) -> Audit:
    """Compare the tokens between the first and the last scrape in the window.

    Only a *surplus* points to another client: a request that failed or was cut off delivers fewer.
    `arrived`: what arrived between the two scrapes, if it has been counted already.
    """
    table, ends = recorded.table, scrapes_inside(window, samples)
    if ends is None or bool((failed_requests(table) | (table.outcome == CANCELLED)).any()):
        return Audit(int(table.tokens.sum()), nan, nan, ok=True)
    if arrived is None:
        arrived = arrivals_between(window, samples)
        scan(recorded, [arrived])
    first, last = ends
    client = arrived.tokens
    told = (table.outcome == OK) & (table.output_tokens >= 0)
    delivered = delivered_tokens(table)[told].sum()
    if delivered:  # an API that does not count in each event hides tokens that share one
        client = round(client * max(table.output_tokens[told].sum() / delivered, 1))
    server = last.generation_tokens_total - first.generation_tokens_total
    # The slack is the tolerance, the tokens of the two uncertain instants, and two engine steps in
    # which every user may have a token that one side has counted and the other has not.
    uncertain = 2 * SCRAPE_UNCERTAINTY_NS / max(last.at_ns - first.at_ns, 1)
    slack = (TOKEN_TOLERANCE + uncertain) * client + 2 * concurrency(table, window)
    surplus = (server - client) / max(client, 1)
    return Audit(client, server, round(surplus, 4), ok=server - client <= slack)


def prefix_surplus(
    table: RecordTable, window: Window, samples: Sequence[ServerSample], shared_tokens: int
) -> float:
    """Share of the prompt tokens found in the prefix cache beyond what prompts may share.

    `shared_tokens`: the length of what every prompt begins with (chat template, the workload's
    system message). The cache works by whole blocks, so one more block is allowed. So is what a
    turn of a session shares with the one before, its answer included. 0 if the server does not
    report it.
    """
    inside = samples_within(samples, window.settled_ns, window.end_ns)
    queries, hits = (counter_increase(inside, f"prefix_{x}_total") for x in ("queries", "hits"))
    if isnan(hits) or not queries > 0:
        return 0.0
    first, last = inside[0], inside[-1]
    sent = int(((table.sent_ns >= first.at_ns) & (table.sent_ns <= last.at_ns)).sum())
    allowed = float((shared_tokens + KV_BLOCK_TOKENS) * (sent + concurrency(table, window)))
    turns = (table.new_tokens >= 0) & (table.sent_ns <= last.at_ns) & (table.done_ns > first.at_ns)
    if turns.any():
        answered = table.prompt_tokens - table.new_tokens  # with the answer, where it is real
        history = np.fmax(expected_hits(table, shared_tokens), answered)[turns]
        # where the server does not count prompts, nothing is known of what they share
        allowed += float(history.sum()) if (history >= 0).all() else np.inf
    return float(max(hits - allowed, 0) / queries)


def expected_hits(table: RecordTable, shared_tokens: int, block: int = KV_BLOCK_TOKENS) -> Floats:
    """The tokens of each prompt that an ideal prefix cache has, in whole blocks; NaN: not known.

    A turn that goes on finds all of the prompt before, as the server counted it.
    """
    known = np.where(table.new_tokens < 0, shared_tokens, table.prompt_tokens - table.new_tokens)
    known = np.where((table.new_tokens >= 0) & (table.prompt_tokens < 0), np.nan, known)
    order = np.lexsort((table.turn, table.session, table.user, table.worker))
    keys = np.stack([table.worker, table.user, table.session, table.turn])[:, order]
    follows = (np.diff(keys) == [[0], [0], [0], [1]]).all(axis=0)
    before, after = order[:-1][follows], order[1:][follows]
    counted = (table.prompt_tokens[before] >= 0) & (table.new_tokens[after] >= 0)
    known[after[counted]] = table.prompt_tokens[before[counted]]
    return np.asarray(known // block * block)


def prefix_hits(
    table: RecordTable, window: Window, samples: Sequence[ServerSample], shared: tuple[int, int]
) -> PrefixHits | None:
    """Of the requests sent in the window, or between two scrapes if requests do not say.

    `shared`: the tokens that all prompts begin with, and those of a KV block.

    None: no sessions, or no server that counts hits.
    """
    start, end = window.settled_ns, window.end_ns
    expected = expected_hits(table, *shared)
    rows = (table.sent_ns >= start) & (table.sent_ns <= end) & ~np.isnan(expected)
    told = rows & (table.cached_tokens >= 0)
    if not (rows & (table.session >= 0)).any():
        return None
    if told.any():
        rows, counted = told, float(table.cached_tokens[told].sum())
    else:
        inside = samples_within(samples, start, end)
        counted = counter_increase(inside, "prefix_hits_total")
        if isnan(counted):
            return None
        rows &= (table.sent_ns >= inside[0].at_ns) & (table.sent_ns <= inside[-1].at_ns)
    return PrefixHits(int(rows.sum()), float(expected[rows].sum()), counted)


def gap_sentence(table: RecordTable, window: Window, host: HostFigures = UNKNOWN_HOST) -> str:
    """Which requests of a level's schedule have no record, although later ones do; ""."""
    inside = (table.scheduled_ns >= window.settled_ns) & (table.sent_ns <= window.end_ns)
    numbers = table.user[inside]
    # the newest may be on their way, or wait for their turn in another process
    settled = np.unique(numbers[numbers < numbers.max(initial=0) - len(numbers) // 10])
    lost = int(settled[-1] - settled[0]) + 1 - len(settled) if len(settled) else 0
    if not lost:
        return ""
    return (
        f"{lost} requests that were due have no record: a load process fell behind or stopped; "
        f"{remedy(host, LOWER_RATE)}"
    )


def audit_sentence(
    recorded: RecordSource,
    window: Window,
    samples: Sequence[ServerSample],
    shared_tokens: int = 0,
    arrived: ArrivalCounter | None = None,
    *,
    host: HostFigures = UNKNOWN_HOST,
) -> str:
    """Why the level must not be used, or ""; `host`: the client's machine in its window."""
    table = recorded.table
    warm = prefix_surplus(table, window, samples, shared_tokens)
    if warm > MAX_PREFIX_HIT_SHARE:
        return (
            f"{warm:.0%} of the prompt tokens came from the server's prefix cache although every "
            "prompt is new: another client repeats them, or an earlier run used the same seed; try "
            "another --seed, or restart the server"
        )
    tokens = audit_tokens(recorded, window, samples, arrived)
    if not tokens.ok:
        return (
            f"the server generated {tokens.server_tokens:.0f} tokens while this client received "
            f"{tokens.client_tokens}: it has another client; stop the other load"
        )
    if window.rate_per_s:  # how many are in flight follows from the server
        return gap_sentence(table, window, host)
    law = apply_littles_law(table, window)
    backs_off = bool((table.outcome == CONNECT).any())  # users pause before they retry
    enough = int((table.outcome == OK).sum()) > MIN_LITTLE_REQUESTS
    seconds = (window.end_ns - window.settled_ns) / SECOND
    enough = enough and seconds >= MIN_LITTLE_THINKS * law.z_s
    # At the end of a batch users run out of requests, so fewer are in flight: no error.
    ends_early = window.purpose == Purpose.batch and law.error < 0
    if not enough or abs(law.error) <= MAX_LITTLE_ERROR or backs_off or ends_early:
        return ""
    under_way = "users were waiting or thinking" if law.z_s else "requests were in flight"
    formula = f"N = X {'(R + Z)' if law.z_s else 'R'}"
    seen = f"{law.n * (1 + law.error):.1f} {under_way} with {law.n:.0f} users"
    if law.error > 0:  # a user has one request at a time, so never more than users
        return (
            f"{seen} (Little's law {formula} does not hold): requests of another level were still "
            "running, or the clock was set; measure the level again"
        )
    return (
        f"{seen} (Little's law {formula} does not hold): the client cannot keep its users busy; "
        f"{remedy(host, 'try --processes 2')}"
    )
