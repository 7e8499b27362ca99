"""Does a step add up? Two users send one request after the other, a second and ten tokens each.

Tokens arrive every 100 ms, 20 a second in all.
"""

from dataclasses import replace
from math import isnan

import pytest
from measure_tables import SECOND, record, table, window

from harness.core.typed_json import to_json
from harness.diagnosis.audit import (
    apply_littles_law,
    audit_sentence,
    audit_tokens,
    expected_hits,
    prefix_hits,
    prefix_surplus,
)
from harness.metrics.ledger import mean_in_flight
from harness.metrics.level_figures import PrefixHits
from harness.records.request_record import Outcome, RequestRecord
from harness.records.samples import ServerSample

TEN_S = window(2, 0, 10)


def ten_tokens(number: int, sent_s: int) -> RequestRecord:
    """A request of a second."""
    sent_ms = 1000 * sent_s
    return record(number, sent_ms, list(range(sent_ms + 100, sent_ms + 1001, 100)))


BUSY = [ten_tokens(2 * second + user, second) for second in range(10) for user in range(2)]
THIRD = [ten_tokens(40 + second, second) for second in range(10)]
ONE_IDLE = [r for r in BUSY if r.number % 2 == 0]
FAILED = record(20, 5000, [], done=5500, outcome=Outcome.status)


def scrapes(generated=0.0, queries=0.0, hits=0.0):
    """Two scrapes, at 2 s and 8 s, and what the counters grew between them."""
    # What one scrape does not say, NaN, neither does the other: 0 x NaN is NaN.
    before = scrape(2, 0 * generated, 0 * queries, 0 * hits)
    return [before, scrape(8, generated, queries, hits)]


def scrape(at_s, generated, queries, hits):
    """A scrape after the counters have grown by so much."""
    return ServerSample(
        at_s * SECOND,
        generation_tokens_total=100 + generated,
        prefix_queries_total=100 + queries,
        prefix_hits_total=50 + hits,
    )


@pytest.mark.parametrize(
    ("records", "want"),
    [
        (BUSY, (2, 2, 1, 0)),  # 20 ended in 10 s, 1 s each: N = 2 x 1
        (ONE_IDLE, (2, 1, 1, -0.5)),  # 1 x 1 under way with 2 users
        ([], (2, 0, 0, -1)),
    ],
)
def test_littles_law(records, want):
    """N, X, R and what is under way by the records against the users."""
    law = apply_littles_law(table(*records), TEN_S)
    assert (law.n, law.x, law.r_s, law.error) == want


@pytest.mark.parametrize(
    ("start_s", "end_s", "want"),
    [(0, 10, 2), (0, 20, 1), (9.5, 10.5, 1), (20, 30, 0)],
)
def test_requests_under_way(start_s, end_s, want):
    """Mean over the time asked for."""
    assert mean_in_flight(table(*BUSY), round(start_s * SECOND), round(end_s * SECOND)) == want


@pytest.mark.parametrize(
    ("generated", "want_surplus", "want_ok"),
    [
        (120, 0, True),  # 6 s of 20 a second
        (100, -0.1667, True),  # fewer: the scrape's edge
        # 3 % of 120, 0.5 of 6 s' tokens at the edges and two for each user: 3.6 + 10 + 4
        (137, 0.1417, True),
        (138, 0.15, False),
        (float("nan"), None, True),  # not said
    ],
)
def test_tokens_of_both_sides(generated, want_surplus, want_ok):
    """Only a surplus of the server's beyond what the edges explain is somebody else's load."""
    found = audit_tokens(table(*BUSY), TEN_S, scrapes(generated))
    assert to_json(found)["surplus"] == want_surplus
    assert found.ok == want_ok


@pytest.mark.parametrize(("told", "want"), [(-1, (120, 1.0, False)), (20, (240, 0.0, True))])
def test_tokens_that_share_an_event(told, want):
    """An API may say only at the end that ten events held 20 tokens: no other client's load."""
    merged = [replace(r, output_tokens=told) for r in BUSY]
    found = audit_tokens(table(*merged), TEN_S, scrapes(240))
    assert (found.client_tokens, found.surplus, found.ok) == want


def test_tokens_are_not_compared_where_requests_failed():
    """A failed request's tokens were generated and did not arrive."""
    assert audit_tokens(table(*BUSY, FAILED), TEN_S, scrapes(1000)).ok


@pytest.mark.parametrize(
    ("hits", "shared", "want"),
    [
        (0, 0, 0),
        # 14 were sent from 2 s to 8 s, 2 more are under way: a block of 16 tokens each, 256
        (256, 0, 0),
        (356, 0, 0.1),  # 100 of 1,000
        (356, 16, 0),  # the chat template's tokens are every prompt's
        (float("nan"), 0, 0),
    ],
)
def test_hits_in_the_prefix_cache(hits, shared, want):
    """Hits beyond what prompts share, as a share of the tokens looked up."""
    got = prefix_surplus(table(*BUSY), TEN_S, scrapes(120, 1000, hits), shared)
    assert got == pytest.approx(want)


@pytest.mark.parametrize(
    ("records", "samples", "want"),
    [
        (BUSY, scrapes(120), ""),
        (BUSY, [], ""),
        (BUSY, scrapes(120, 1000, 356), "10% of the prompt tokens came from"),
        (BUSY, scrapes(300), "the server generated 300 tokens while this client received 120"),
        (BUSY[::2] + BUSY[1:3:2], [], "1.1 requests were in flight with 2 users"),  # 11 s of 10
        (BUSY[:8], [], ""),  # too few to say
        # 3 x 10 s of work within 10 s by 2 users: too many are no idle client
        (
            BUSY + THIRD,
            [],
            "3.0 requests were in flight with 2 users (Little's law N = X R does not hold): re",
        ),
    ],
)
def test_why_a_step_must_not_be_used(records, samples, want):
    """One sentence, or none."""
    found = audit_sentence(table(*records), TEN_S, samples)
    assert found.startswith(want)
    assert bool(found) == bool(want)


# Two users with a second of service and a second of thought, out of step: 10 requests in 10 s.
THINKING = [replace(ten_tokens(10 + second, second), think_ns=SECOND) for second in range(10)]


@pytest.mark.parametrize(
    ("records", "users", "want"),
    [
        (THINKING, 2, (1, 1, 1, 0)),  # N = 1 x (1 + 1)
        (THINKING, 4, (1, 1, 1, -0.5)),  # two more would be thinking for longer than planned
        (THINKING[:2], 2, (0.2, 1, 1, -0.8)),
    ],
)
def test_littles_law_has_the_think_time_in_it(records, users, want):
    """X, R, Z and the error; a planned pause is no idle user."""
    law = apply_littles_law(table(*records), window(users, 0, 10))
    assert (law.x, law.r_s, law.z_s, law.error) == want


@pytest.mark.parametrize(
    ("users", "seconds", "want"),
    [
        (2, 10, ""),
        (4, 10, "2.0 users were waiting or thinking with 4 users (Little's law N = X (R + Z) does"),
        (4, 3, ""),  # the window is short beside the think time
    ],
)
def test_idle_users_are_told_from_thinking_ones(users, seconds, want):
    """One sentence, or none."""
    twice = [replace(r, number=r.number + 50, user=r.user + 50, think_ns=SECOND) for r in THINKING]
    half = THINKING if seconds == 10 else [*THINKING, *twice]
    found = audit_sentence(table(*half, record(99, 9999, [10_000])), window(users, 0, seconds), [])
    assert found.startswith(want)
    assert bool(found) == bool(want)


def turn(number, session, turn, prompt, new, cached=-1, user=7):
    """A request of a session, sent at `number` s."""
    sent_ms = 1000 * number
    return replace(
        record(number, sent_ms, [sent_ms + 500]),
        user=user,
        session=session,
        turn=turn,
        prompt_tokens=prompt,
        new_tokens=new,
        cached_tokens=cached,
    )


SESSION = [
    turn(2, 0, 3, 400, -1, 32),  # joined mid-way
    turn(3, 0, 4, 530, 120, 400),  # 400 were there: 25 blocks
    turn(4, 0, 5, 600, 90, 528),  # 530: 33 blocks
    turn(5, 1, 0, 100, -1, 32),
    turn(6, 1, 1, 190, 80, 96),  # 100: 6 blocks
    turn(7, 1, 5, 900, 200, 688),  # its turn before is not known: 900 - 200 = 700, 43 blocks
]


def test_hits_that_sessions_expect():
    """Whole blocks of the prompt before, as the server counted it; else what all share."""
    assert expected_hits(table(*SESSION[::-1]), 40)[::-1].tolist() == [32, 400, 528, 32, 96, 688]
    assert expected_hits(table(*SESSION), 40, 128).tolist() == [0, 384, 512, 0, 0, 640]
    unsaid = [replace(request, prompt_tokens=-1) for request in SESSION]
    got = expected_hits(table(*unsaid), 40)
    for first in (0, 3):
        assert got[first] == 32
    for later in (1, 2, 4, 5):
        assert isnan(got[later])


@pytest.mark.parametrize(
    ("records", "samples", "want"),
    [
        (SESSION, [], PrefixHits(6, 1776, 1776)),
        # no figures by request: the counters' 1,700 between 2 s and 8 s
        (
            [replace(one, cached_tokens=-1) for one in SESSION],
            scrapes(0, 3000, 1700),
            PrefixHits(6, 1776, 1700),
        ),
        ([replace(one, cached_tokens=-1) for one in SESSION], scrapes(hits=float("nan")), None),
        (BUSY, scrapes(0, 3000, 1700), None),
    ],
)
def test_hits_by_the_plan_and_by_the_server(records, samples, want):
    """Of sessions alone, where the server counts."""
    assert prefix_hits(table(*records), TEN_S, samples, (40, 16)) == want


@pytest.mark.parametrize(
    ("hits", "want"),
    [
        (0, 0),  # evicted, or a server without prefix caching: no fault
        (1776, 0),
        # 410 + 528 + 110 + 700 of the sessions, and for six requests and two users what all prompts
        # share and a block: 1,748 + 8 x 56
        (2196, 0),
        (2700, 0.168),
    ],
)
def test_expected_hits_are_no_surplus(hits, want):
    """Only what goes beyond a session's own history was sent by somebody else."""
    got = prefix_surplus(table(*SESSION), TEN_S, scrapes(0, 3000, hits), 40)
    assert got == pytest.approx(want)
