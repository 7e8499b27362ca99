"""Gaps that are counted say what gaps that are kept would say."""

from dataclasses import fields, replace

import numpy as np
import pytest
from measure_tables import SECOND, window
from random_tables import Pieces, random_table

from harness.metrics import log_histogram
from harness.metrics.event_gaps import event_gaps, event_gaps_in_python
from harness.metrics.evidence import gather_evidence
from harness.metrics.latency_figures import blocked_windows, latency_json, sample_figures
from harness.metrics.log_histogram import DURATION_BINS, Cells, LogHistogram, duration_bin
from harness.metrics.metrics import GAPS
from harness.metrics.scan import scan
from harness.metrics.slo import Slo
from harness.metrics.statistics import QUANTILES
from harness.metrics.token_gaps import WindowGapCounter, pool_gaps
from harness.metrics.window_summary import WindowTokens, window_summary
from harness.records.record_table import OK

WINDOWS = [(0, 30), (3, 4.5), (10, 10.000001), (40, 50)]  # s: all, some, hardly any, none


EXACT = ("n", "n_failed", "mean", "max")
CLOSE = ("effective_n", *(f"{name}_ci95" for name in QUANTILES))  # by bins, not by value


def exact_figures(figures):
    """Those that counting keeps to the last digit."""
    return {key: figures[key] for key in EXACT}


def are_close(got, want):
    """Whether two figures are within 0.1%, or the same word."""
    if isinstance(want, str | None):
        return got == want
    return got == pytest.approx(want, rel=1e-3, abs=1e-6)


def within_a_bin(got, want):
    """Whether figures are close: two of them, or each of a pair's."""
    if isinstance(want, list):
        return all(are_close(a, b) for a, b in zip(got, want, strict=True))
    return are_close(got, want)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("span_s", WINDOWS)
@pytest.mark.parametrize("key", GAPS)
def test_counted_gaps_are_those_of_the_table(seed, span_s, key):
    """Numbers, mean and max to the last digit, whatever the pieces; quantiles within 0.1%."""
    whole = random_table(seed, 400)
    span = tuple(round(s * SECOND) for s in span_s)
    want = latency_json(sample_figures(whole, key, blocked_windows(whole, [span])))
    got = latency_json(WindowTokens.of(Pieces(whole), span).gaps[key])
    assert exact_figures(got) == exact_figures(want)
    for name in want.keys() - {*EXACT, *CLOSE}:
        assert within_a_bin(got[name], want[name]), name
    assert got["effective_n"] == pytest.approx(want["effective_n"], rel=0.1)
    for name in CLOSE:
        assert (got[name] is None) == (want[name] is None), name


def test_intervals_are_those_of_kept_gaps():
    """Ends within two hundredths: those of kept gaps are ranks in 512 bins themselves."""
    whole = random_table(7, 3000)
    span = (0, 25 * SECOND)
    whole = whole.select(whole.outcome == OK)
    want = latency_json(sample_figures(whole, "itl", blocked_windows(whole, [span])))
    got = latency_json(WindowTokens.of(Pieces(whole, 50), span).gaps["itl"])
    for name in QUANTILES:
        key = f"{name}_ci95"
        assert got[key] == pytest.approx(want[key], rel=0.02), name


@pytest.mark.parametrize("seed", range(3))
def test_windows_of_a_level_are_counted_together(seed):
    """Two windows as one, their blocks side by side."""
    whole = random_table(seed, 400)
    spans = blocked_windows(whole, [(2 * SECOND, 6 * SECOND), (9 * SECOND, 14 * SECOND)])
    kept = sample_figures(whole, "itl", spans)
    parts = [WindowGapCounter(whole, span) for span in spans]
    scan(Pieces(whole), parts)
    gaps = pool_gaps(parts)
    got = latency_json(gaps)
    want = latency_json(kept)
    assert exact_figures(got) == exact_figures(want)
    for name in QUANTILES:
        for key in (name, f"{name}_instrument"):
            assert within_a_bin(got[key], want[key]), key
    for q in (0.2, 0.75):
        assert gaps.quantile(q) == pytest.approx(kept.quantile(q), rel=1e-3)
    assert gaps.effect(0.95) == pytest.approx(kept.effect(0.95), rel=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_over_a_limit_is_exact(seed):
    """Gaps are compared with the limit one by one: one nanosecond tells them apart."""
    whole = random_table(seed, 400)
    step = window(20, 2, 9)
    spans = blocked_windows(whole, [(step.settled_ns, step.end_ns)])
    observed = sample_figures(whole, "itl", spans).seen.ns
    finite = np.sort(observed[np.isfinite(observed)])
    limits = finite[[3, 100, -2]].astype(int).tolist()
    slo = Slo.parse("itl_p95=20ms")
    slos = [replace(slo, limit_ns=ns + off) for ns in limits for off in (-1, 0, 1)]
    evidence = gather_evidence(Pieces(whole), step, slos)
    for i, slo in enumerate(slos):
        sizes, over = evidence.over(i)
        assert sizes.sum() == len(observed), slo
        assert over.sum() == (observed > slo.limit_ns).sum(), slo


@pytest.mark.parametrize("seed", range(3))
def test_a_windows_figures_from_pieces(seed):
    """What arrived and how much of it was exact, beside figures per request."""
    whole = random_table(seed)
    got = window_summary(Pieces(whole), SECOND, 9 * SECOND)
    assert got == window_summary(whole, SECOND, 9 * SECOND)


def test_bins_are_a_thousandth_wide_and_in_order():
    """Below 1,024 ns each value has a bin, above it the values of one are within a thousandth."""
    draw = np.random.default_rng(1)
    drawn = np.unique((2 ** draw.uniform(0, 53, 50_000)).astype(np.int64))
    near_powers = np.concatenate([v + np.arange(-2, 3) for v in 2 ** np.arange(3, 53)])
    values = np.unique(np.concatenate([drawn, near_powers, np.arange(2000)]))
    bins = duration_bin(values)
    assert (np.diff(bins) >= 0).all()
    # of each value's bin, the first and the last value
    firsts = np.searchsorted(bins, bins)
    lasts = np.searchsorted(bins, bins, "right") - 1
    for first, last in zip(firsts, lasts, strict=True):
        assert values[last] - values[first] <= values[first] / 1024
    assert bins.min() == 0
    assert bins.max() < DURATION_BINS
    assert (duration_bin(np.array([-5, 2**60])) == [0, DURATION_BINS - 1]).all()


@pytest.mark.parametrize("kind", ["even", "tight", "wide", "alike"])
def test_order_statistics_are_within_a_thousandth(kind):
    """Any rank, counted in whatever parts; exact where all values of a bin are alike."""
    draw = np.random.default_rng(2)
    values = {
        "even": draw.integers(0, 10**7, 20_000),
        "tight": draw.integers(20_000_000, 20_000_900, 20_000),  # in one bin
        "wide": (10 ** draw.uniform(3, 11, 20_000)).astype(np.int64),  # few in a bin
        "alike": np.full(20_000, 20_000_000),
    }[kind]
    ordered = np.sort(values)
    ranks = [0, 1, 7, 9_999, 10_000, 19_998, 19_999]
    histogram = LogHistogram()
    for part in np.split(values, 5):
        histogram.add(part, duration_bin(part))
    got = [histogram.at(rank) for rank in ranks]
    tolerance = 0 if kind == "alike" else 1e-3
    assert got == pytest.approx(ordered[ranks].tolist(), rel=tolerance)
    assert got == sorted(got)
    assert got[-1] <= ordered[-1]
    assert histogram.totals[1].sum() == len(values)


def test_weights_are_repetitions():
    """A value that counts three times is three values; one that counts no time is none."""
    values = np.array([10, 2000, 30_000, 7])
    weights = np.array([3, 1, 2, 0])
    once = LogHistogram()
    weighed = LogHistogram()
    weighed.add(values, duration_bin(values), 0, weights)
    repeated = np.repeat(values, weights)
    once.add(repeated, duration_bin(repeated))
    assert [x.tolist() for x in weighed.totals] == [x.tolist() for x in once.totals]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [0, 1, 400])
def test_gaps_in_c_are_those_in_python(seed, n):
    """Also of requests with one event, and with none."""
    table = random_table(seed, n)
    got = event_gaps(table)
    want = event_gaps_in_python(table)
    for f in fields(want):
        assert np.array_equal(getattr(got, f.name), getattr(want, f.name)), f.name


@pytest.mark.parametrize("spread_ms", [0.0, 0.001, 3.0, 3000.0])
@pytest.mark.parametrize("blocks", [1, 24])
@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_cells_in_c_are_those_in_python(spread_ms, blocks, kind, monkeypatch):
    """Alike, near each other, and so far apart that they are sorted; in one block and in many."""
    draw = np.random.default_rng(1)
    ns = (20e6 + draw.exponential(spread_ms * 1e6, 5000)).astype(kind)
    block = draw.integers(0, blocks, 5000) if blocks > 1 else 0
    got = Cells.of(ns, duration_bin(ns), block)
    monkeypatch.setattr(log_histogram, "WHY_PYTHON", "asked for")
    want = Cells.of(ns, duration_bin(ns), block)
    for name, column in want._asdict().items():
        assert np.array_equal(getattr(got, name), column), name
