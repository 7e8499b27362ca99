"""The figures of a window as JSON holds them."""

from math import ceil

import numpy as np
import pytest
from measure_tables import MS, SECOND, record, table

from harness.metrics.latency_figures import (
    blocked_windows,
    latency_json,
    sample_figures,
    time_block_ns,
)
from harness.metrics.slo import Slo
from harness.metrics.statistics import QUANTILES
from harness.metrics.window_summary import good_requests, window_summary
from harness.records.request_record import Outcome

TTFT = Slo.parse("ttft_p95=60ms")
ITL = Slo.parse("itl_p95=30ms")
E2E = Slo.parse("e2e_p95=100ms")


def plain(number, sent=None, ttft=50.0, gap=20.0, lows=None):
    """Sent each 10 ms, two tokens: `ttft` ms after it and `gap` ms later, where it ends."""
    sent = 10 * number if sent is None else sent
    first = sent + ttft
    return record(number, sent, [first, first + gap], lows=lows)


def lost(number):
    """Sent as `plain`, refused after 1 ms; two tokens were planned."""
    sent = 10 * number
    return record(number, sent, [], sent + 1, outcome=Outcome.status, planned=2)


TWO_S = [plain(n) for n in range(199)] + [lost(199)]


@pytest.fixture(scope="module")
def two_seconds():
    """The figures of 200 requests in 2 s, the last of them refused."""
    return window_summary(table(*TWO_S), 0, 2 * SECOND, (TTFT,))


def test_the_figures_of_two_seconds(two_seconds):
    """Of the window as a whole."""
    got = two_seconds
    # 194 of 199 ended by 2 s: sent at 1930 at the latest; so did their second tokens, and the
    # first ones of those sent by 1950: 194 + 196 tokens
    assert got["requests_per_s"] == 194 / 2
    assert got["output_tokens_per_s"] == (194 + 196) / 2
    assert got["goodput_per_s"] == 194 / 2
    assert got["outcomes"] == {"ok": 199, "status": 1}
    assert got["n_failed"] == 1
    assert got["exact_share"] == 1
    assert got["tokens_per_event"] == 1
    # gaps count by when they end: 194 in time, and the refused request's one at 1991 ms
    assert got["itl_ms"]["n"] == 195
    assert got["itl_ms"]["n_failed"] == 1


def test_the_ttft_of_two_seconds(two_seconds):
    """Each quantile, with the intervals of the instrument and of chance."""
    ttft = two_seconds["ttft_ms"]
    assert ttft["n"] == 200
    assert ttft["n_failed"] == 1
    assert ttft["mean"] == 50
    assert ttft["max"] == 50
    assert ttft["p50"] == 50
    assert ttft["p50_instrument"] == [50, 50]
    assert ttft["p50_ci95"] == [50, 50]
    # 28 lifetimes: blocks of six, 2 + 28 / 6, so 6; t of 5 degrees of freedom is 2.57;
    # 190 + 2.57 x 3.08 = 197.9
    assert ttft["p95"] == 50
    assert ttft["p95_ci95"] == [50, 50]
    # 198 + 2.57 x 1.41 = 201.6 of 200: no value is high enough
    assert ttft["p99"] == 50
    assert ttft["p99_ci95"] == [50, None]
    assert ttft["p99_instrument"] == [50, 50]
    # rank ceil(198.8), the last
    assert ttft["p999"] == "inf"
    assert ttft["p999_ci95"] == [50, None]


@pytest.mark.parametrize(
    ("events", "lows", "tokens", "want"),
    [
        ([50], None, [128], 1.0),  # one event with the whole answer
        ([50, 50.2], [49, 49], [1, 1], 1.0),  # both may have come in one read
        ([50, 70], [49, 69], [1, 1], 0.0),  # a stream
        ([50, 51], [50, 51], [1, 48], 1.0),  # 49 tokens in the same ms, through a gateway
        ([50, 51], [50, 51], [1, 299], 1.0),  # 300 in a burst of several reads
        ([50, 51], [50, 51], [1, 4], 0.0),  # 0.25 ms a token: the fastest engines are as fast
        ([50], None, [1], None),  # one token says nothing
    ],
)
def test_answers_that_came_all_at_once(events, lows, tokens, want):
    """Where the last token may have come with the first, TTFT is e2e by another name."""
    requests = [lost(9)]  # a failed request says nothing
    for n in range(9):
        sent = 10 * n
        at = [sent + event for event in events]
        not_before = None if lows is None else [sent + low for low in lows]
        requests.append(record(n, sent, at, tokens=tokens, lows=not_before))
    assert window_summary(table(*requests), 0, SECOND)["came_at_once"] == want


def test_what_the_harness_cut_off_is_open():
    """Ten of them, five without a token: no failures; those have an e2e latency and no TTFT."""
    cut = []
    for n in range(200, 210):
        events = [20] if n % 2 else []
        cut.append(record(n, 10, events, 400, Outcome.cancelled, planned=9))
    got = window_summary(table(*TWO_S, *cut), 0, 2 * SECOND, (TTFT,))
    assert got["outcomes"] == {"ok": 199, "status": 1, "open": 10}
    assert got["n_failed"] == 1
    assert got["ttft_ms"]["n"] == 205
    assert got["ttft_ms"]["n_failed"] == 1
    assert got["e2e_ms"]["n"] == 210
    assert got["e2e_ms"]["n_failed"] == 1
    assert got["itl_ms"]["n_failed"] == 1


@pytest.mark.parametrize(
    ("failed", "want"),
    [
        (9, 50),  # 0.95 x 199 = 189.05: rank 190 from 0, the last of 191 finite ones
        (10, "inf"),
        (20, "inf"),
    ],
)
def test_failures_push_a_quantile_to_infinity(failed, want):
    """Of 200 requests."""
    well = [plain(n) for n in range(200 - failed)]
    ill = [lost(n) for n in range(200 - failed, 200)]
    got = window_summary(table(*well, *ill), 0, 3 * SECOND)
    assert got["ttft_ms"]["p95"] == want


@pytest.mark.parametrize("n", [1, 2, 19, 150])
def test_every_quantile_is_known_with_an_interval(n):
    """From one request on; where no value is high enough the interval has no upper end."""
    rows = [plain(i, ttft=50 + i % 7) for i in range(n)]
    found = window_summary(table(*rows), 0, n * 10 * MS)["ttft_ms"]
    ordered = sorted(50 + i % 7 for i in range(n))
    for name, q in QUANTILES.items():
        lo, hi = found[f"{name}_ci95"]
        value = found[name]
        assert value == ordered[ceil(q * (n - 1))]
        assert lo <= value <= (hi or value)
        assert (hi is None) == (n * (1 - q) < 2.5 or n < 15), name
        assert found[f"{name}_instrument"] == [value, value]


def test_the_instruments_interval_is_that_of_the_stamps():
    """First tokens known to 10 ms: the median lies in (40, 50], gaps of 20 in (20, 30]."""
    rows = [plain(n, lows=[10 * n + 40, 10 * n + 70]) for n in range(20)]
    got = window_summary(table(*rows), 0, SECOND)
    assert got["ttft_ms"]["p50"] == 50
    assert got["ttft_ms"]["p50_instrument"] == [40, 50]
    assert got["itl_ms"]["p50"] == 20
    assert got["itl_ms"]["p50_instrument"] == [20, 30]
    assert got["exact_share"] == 0.5


@pytest.mark.parametrize(
    ("one", "slos", "want"),
    [
        (plain(0), (TTFT, ITL, E2E), True),
        (plain(0, ttft=60), (TTFT,), True),  # at the limit
        (plain(0, ttft=61), (TTFT,), False),
        (plain(0, gap=31), (ITL,), False),
        (record(0, 0, [50, 60, 100]), (ITL,), True),  # gaps 10 and 40: its own TPOT is 25
        (record(0, 0, [50]), (ITL,), True),  # one token has no gap
        (plain(0, ttft=55, gap=50), (E2E,), False),  # 105
        (lost(0), (), False),
    ],
)
def test_good_requests(one, slos, want):
    """Goodput judges each request by its own figures."""
    assert good_requests(table(one), slos).tolist() == [want]


@pytest.mark.parametrize(
    ("length_ms", "life_ms", "want_ms"),
    [
        (1000, 70, 250),  # 2 + 14.3 lifetimes / 6 = 4.4
        (3000, 70, 3000 / 9),  # 2 + 42.9 / 6 = 9.1
        (20_000, 70, 20_000 / 24),  # 24 blocks at most
        (100, 70, 25),  # 4 at least
    ],
)
def test_blocks_are_of_up_to_six_lifetimes(length_ms, life_ms, want_ms):
    """Requests of 70 ms."""
    assert life_ms == 70
    requests = table(*TWO_S[:10])
    assert time_block_ns(requests, 0, length_ms * MS) == int(np.ceil(want_ms * MS))


def test_several_windows_of_a_level_are_one():
    """Requests sent in either window count once; those between them do not."""
    whole = table(*TWO_S[:199])
    windows = [(0, 495 * MS), (1000 * MS, 1495 * MS)]  # sent at 0 to 490 and 1000 to 1490
    sample = sample_figures(whole, "ttft", blocked_windows(whole, windows))
    got = latency_json(sample)
    assert got["n"] == 100
    assert got["p50"] == 50
    assert got["p90"] == 50


def test_an_empty_window():
    """Nothing was sent: counts are 0, latencies are not known."""
    got = window_summary(table(), 0, SECOND, (TTFT,))
    assert got["requests_per_s"] == 0
    assert got["output_tokens_per_s"] == 0
    assert got["exact_share"] is None
    assert got["ttft_ms"]["n"] == 0
    assert got["ttft_ms"]["mean"] is None
    assert got["ttft_ms"]["p50"] is None
