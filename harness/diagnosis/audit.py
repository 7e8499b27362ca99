"""Consistency checks of a level: Little's law, and the client's token counts against the server's.

A client that loses records breaks the first; a server that has other clients breaks the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isnan, nan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.arrays import between
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
    from harness.core.arrays import Bools, Floats
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
    """Little's law for one level: a closed loop keeps every user busy, or thinking as planned.

    Its error is that of the users seen busy or thinking, as a share of N.
    """
    start_ns = window.settled_ns
    end_ns = window.end_ns
    # X and R are of what ended in the window: requests that were under way when it began stand for
    # those that are when it ends.
    ended = between(table.done_ns, start_ns, end_ns) & ~table.is_open
    response_s = 0.0  # R, mean
    if ended.any():
        response_ns = (table.done_ns - table.sent_ns)[ended]
        response_s = float(response_ns.mean() / SECOND)
    throughput_per_s = float(ended.sum()) / max(end_ns - start_ns, 1) * SECOND  # X
    users = window.load.in_flight(response_s)  # N
    think_s = 0.0  # Z, mean
    busy_users = mean_in_flight(table, start_ns, end_ns)
    if ended.any() and (table.think_ns > 0).any():
        think_ns = table.think_ns[ended].clip(min=0)
        think_s = float(think_ns.mean() / SECOND)
        # Who thinks when the window begins may have sent before the records that we have: the
        # planned pauses that we see are too few, X Z is right on average, and noisy.
        seen_thinking = _mean_thinking(table, start_ns, end_ns)
        likely_thinking = throughput_per_s * think_s
        busy_users += max(seen_thinking, likely_thinking)
    expected_users = users or 1.0  # 0 with a rate where nothing ended
    error = busy_users / expected_users - 1
    return Little(
        n=round(users, 4),
        x=round(throughput_per_s, 4),
        r_s=round(response_s, 6),
        error=round(error, 4),
        z_s=round(think_s, 6),
    )


def _mean_thinking(table: RecordTable, start_ns: int, end_ns: int) -> float:
    """Users between an answer and their next request, by the planned pauses in the records."""
    think_ns = np.where(table.is_open, 0, table.think_ns.clip(min=0))
    # Of each pause, the part that lies in the window; it is negative where none does.
    begin_ns = table.done_ns.clip(min=start_ns)
    back_ns = (table.done_ns + think_ns).clip(max=end_ns)
    pauses_ns = (back_ns - begin_ns).clip(min=0)
    return float(pauses_ns.sum()) / max(end_ns - start_ns, 1)


def scrapes_inside(
    window: Window, samples: Sequence[ServerSample]
) -> tuple[ServerSample, ServerSample] | None:
    """The first and the last scrape in the window with a token count; None: fewer than two."""
    inside = samples_within(samples, window.settled_ns, window.end_ns)
    counting = [sample for sample in inside if not isnan(sample.generation_tokens_total)]
    if len(counting) <= 1:
        return None
    return counting[0], counting[-1]


def arrivals_between(window: Window, samples: Sequence[ServerSample]) -> ArrivalCounter:
    """Counts the tokens that arrived between the two scrapes; none without two scrapes."""
    scrapes = scrapes_inside(window, samples)
    if scrapes is None:
        return ArrivalCounter(0, -1)
    first, last = scrapes
    # What came by the first scrape is in its counter already.
    return ArrivalCounter(first.at_ns + 1, last.at_ns)


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
    table = recorded.table
    scrapes = scrapes_inside(window, samples)
    incomplete = failed_requests(table) | (table.outcome == CANCELLED)
    if scrapes is None or bool(incomplete.any()):
        return Audit(int(table.tokens.sum()), nan, nan, ok=True)
    if arrived is None:
        arrived = arrivals_between(window, samples)
        scan(recorded, [arrived])
    first, last = scrapes
    client_tokens = _with_hidden_tokens(table, arrived.tokens)
    server_tokens = last.generation_tokens_total - first.generation_tokens_total
    # The slack is the tolerance, the tokens of the two uncertain instants, and two engine steps in
    # which every user may have a token that one side has counted and the other has not.
    uncertain_share = 2 * SCRAPE_UNCERTAINTY_NS / max(last.at_ns - first.at_ns, 1)
    step_tokens = 2 * concurrency(table, window)
    slack_tokens = (TOKEN_TOLERANCE + uncertain_share) * client_tokens + step_tokens
    surplus_tokens = server_tokens - client_tokens
    surplus = round(surplus_tokens / max(client_tokens, 1), 4)
    return Audit(client_tokens, server_tokens, surplus, ok=surplus_tokens <= slack_tokens)


def _with_hidden_tokens(table: RecordTable, arrived_tokens: int) -> int:
    """Scaled to what the server says of its answers, if that is more than came in events.

    An API that does not count in each event hides tokens that share one.
    """
    counted = (table.outcome == OK) & (table.output_tokens >= 0)
    delivered = delivered_tokens(table)[counted].sum()
    if not delivered:
        return arrived_tokens
    tokens_by_server = float(table.output_tokens[counted].sum() / delivered)  # for each delivered
    return round(arrived_tokens * max(tokens_by_server, 1))


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
    # Where servers of their own prefill, a repeated prompt is found in their caches.
    inside = [sample.prefill or sample for sample in inside]
    queries = counter_increase(inside, "prefix_queries_total")
    hits = counter_increase(inside, "prefix_hits_total")
    if isnan(hits) or not queries > 0:
        return 0.0
    begin_ns = inside[0].at_ns
    end_ns = inside[-1].at_ns
    # A request that was in flight at the first scrape may be looked up after it.
    sent = int(between(table.sent_ns, begin_ns, end_ns).sum())
    prompts = sent + concurrency(table, window)
    allowed_tokens = float((shared_tokens + KV_BLOCK_TOKENS) * prompts)
    under_way = (table.sent_ns <= end_ns) & (table.done_ns > begin_ns)
    turns = under_way & (table.new_tokens >= 0)
    if turns.any():
        allowed_tokens += _history_tokens(table, turns, shared_tokens)
    return float(max(hits - allowed_tokens, 0) / queries)


def _history_tokens(table: RecordTable, turns: Bools, shared_tokens: int) -> float:
    """What these turns share with those before; +inf where the server does not count prompts."""
    before_turn = table.prompt_tokens - table.new_tokens  # with the answer, where it is real
    history_tokens = np.fmax(expected_hits(table, shared_tokens), before_turn)[turns]
    if not (history_tokens >= 0).all():
        return inf
    return float(history_tokens.sum())


def expected_hits(table: RecordTable, shared_tokens: int, block: int = KV_BLOCK_TOKENS) -> Floats:
    """The tokens of each prompt that an ideal prefix cache has, in whole blocks; NaN: not known.

    A turn that goes on finds all of the prompt before, as the server counted it.
    """
    is_turn = table.new_tokens >= 0
    before_turn = table.prompt_tokens - table.new_tokens
    known_tokens = np.where(is_turn, before_turn, shared_tokens)
    is_not_counted = is_turn & (table.prompt_tokens < 0)
    known_tokens = np.where(is_not_counted, np.nan, known_tokens)
    # Sorted so, a turn is the neighbor of the one before: the next turn of the same session.
    order = np.lexsort((table.turn, table.session, table.user, table.worker))
    keys = np.stack([table.worker, table.user, table.session, table.turn])
    steps = np.diff(keys[:, order])
    follows = (steps == [[0], [0], [0], [1]]).all(axis=0)
    before = order[:-1][follows]
    after = order[1:][follows]
    counted = (table.prompt_tokens[before] >= 0) & is_turn[after]
    known_tokens[after[counted]] = table.prompt_tokens[before[counted]]
    blocks = known_tokens // block
    return np.asarray(blocks * block)


def prefix_hits(
    table: RecordTable, window: Window, samples: Sequence[ServerSample], shared: tuple[int, int]
) -> PrefixHits | None:
    """Of the requests sent in the window, or between two scrapes if requests do not say.

    `shared`: the tokens that all prompts begin with, and those of a KV block.

    None: no sessions, or no server that counts hits.
    """
    start_ns = window.settled_ns
    end_ns = window.end_ns
    expected = expected_hits(table, *shared)
    rows = between(table.sent_ns, start_ns, end_ns) & ~np.isnan(expected)
    if not (rows & (table.session >= 0)).any():
        return None
    reporting = rows & (table.cached_tokens >= 0)
    if reporting.any():
        rows = reporting
        hit_tokens = float(table.cached_tokens[rows].sum())
    else:
        inside = samples_within(samples, start_ns, end_ns)
        hit_tokens = counter_increase(inside, "prefix_hits_total")
        if isnan(hit_tokens):
            return None
        rows &= between(table.sent_ns, inside[0].at_ns, inside[-1].at_ns)
    expected_tokens = float(expected[rows].sum())
    return PrefixHits(int(rows.sum()), expected_tokens, hit_tokens)


def gap_sentence(table: RecordTable, window: Window, host: HostFigures = UNKNOWN_HOST) -> str:
    """Which requests of a level's schedule have no record, although later ones do; ""."""
    inside = (table.scheduled_ns >= window.settled_ns) & (table.sent_ns <= window.end_ns)
    numbers = table.user[inside]
    # the newest may be on their way, or wait for their turn in another process
    newest = numbers.max(initial=0) - len(numbers) // 10
    settled = np.unique(numbers[numbers < newest])
    if not len(settled):
        return ""
    due = int(settled[-1] - settled[0]) + 1
    lost = due - len(settled)
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
    if window.load.by_schedule:  # how many are in flight follows from the server
        return gap_sentence(table, window, host)
    return _little_sentence(table, window, host)


def _little_sentence(table: RecordTable, window: Window, host: HostFigures) -> str:
    """How the level breaks Little's law, which a closed loop obeys; ""."""
    law = apply_littles_law(table, window)
    finished = int((table.outcome == OK).sum())
    seconds = (window.end_ns - window.settled_ns) / SECOND
    if finished <= MIN_LITTLE_REQUESTS or seconds < MIN_LITTLE_THINKS * law.z_s:
        return ""
    backs_off = bool((table.outcome == CONNECT).any())  # users pause before they retry
    # At the end of a batch users run out of requests, so fewer are in flight: no error.
    ends_early = window.purpose == Purpose.batch and law.error < 0
    if abs(law.error) <= MAX_LITTLE_ERROR or backs_off or ends_early:
        return ""
    if law.z_s:
        under_way = "users were waiting or thinking"
        formula = "N = X (R + Z)"
    else:
        under_way = "requests were in flight"
        formula = "N = X R"
    against_users = f"{law.n * (1 + law.error):.1f} {under_way} with {law.n:.0f} users"
    if law.error > 0:  # a user has one request at a time, so never more than users
        cause = (
            "requests of another level were still running, or the clock was set; "
            "measure the level again"
        )
    else:
        remedy_here = remedy(host, "try --processes 2")
        cause = f"the client cannot keep its users busy; {remedy_here}"
    return f"{against_users} (Little's law {formula} does not hold): {cause}"
