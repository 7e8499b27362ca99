"""Does a step add up? Two users send one request after the other, a second and ten tokens each.

Tokens arrive every 100 ms, 20 a second in all.
"""

from dataclasses import replace

import pytest
from measure_tables import SECOND, record, table, window

from harness.measure.diagnosis.audit import (
    apply_littles_law,
    audit_sentence,
    audit_tokens,
    prefix_surplus,
)
from harness.measure.records.ledger import mean_in_flight
from harness.measure.records.request_record import Outcome
from harness.measure.records.samples import ServerSample
from harness.measure.typed_json import to_json

TEN_S = window(2, 0, 10)
BUSY = [
    record(2 * s + u, 1000 * s, [1000 * s + 100 * k for k in range(1, 11)])
    for s in range(10)
    for u in range(2)
]
THIRD = [record(40 + s, 1000 * s, [1000 * s + 100 * k for k in range(1, 11)]) for s in range(10)]
ONE_IDLE = [r for r in BUSY if r.number % 2 == 0]
FAILED = record(20, 5000, [], done=5500, outcome=Outcome.status)


def scrapes(generated=0.0, queries=0.0, hits=0.0):
    """Two scrapes, at 2 s and 8 s, and what the counters grew between them."""
    return [
        ServerSample(round(at * SECOND), generation_tokens_total=100 + part * generated,
                     prefix_queries_total=100 + part * queries,
                     prefix_hits_total=50 + part * hits)
        for at, part in ((2, 0), (8, 1))
    ]  # fmt: skip


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
    assert (to_json(found)["surplus"], found.ok) == (want_surplus, want_ok)


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
