"""Gaps that are counted say what gaps that are kept would say."""

import numpy as np
import pytest
from measure_tables import SECOND
from random_tables import Pieces, random_table

from harness.measure.figures import block, sample_of, spans_of
from harness.measure.gaps import Gaps, count_gaps
from harness.measure.spread import BINS, Spread, bin_edges, bin_of
from harness.measure.stats import QUANTILES
from harness.measure.summary import Tokens, window_summary
from harness.measure.table import OK

WINDOWS = [(0, 30), (3, 4.5), (10, 10.000001), (40, 50)]  # s: all, some, hardly any, none


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("span_s", WINDOWS)
def test_counted_gaps_are_those_of_the_table(seed, span_s):
    """The same to the last digit, whatever the pieces; intervals within a bin or a rank."""
    whole = random_table(seed, 400)
    span = tuple(round(s * SECOND) for s in span_s)
    want = block(sample_of(whole, "itl", spans_of(whole, [span])))
    got = block(Tokens.of(Pieces(whole), span).gaps)
    near = {key for key in want if "ci95" in key} | {"effective_n"}
    assert {k: got[k] for k in got.keys() - near} == {k: want[k] for k in want.keys() - near}
    assert got["effective_n"] == pytest.approx(want["effective_n"], rel=0.1)
    for key in near - {"effective_n"}:
        assert (got[key] is None) == (want[key] is None)


def test_intervals_are_those_of_kept_gaps():
    """Ends within two hundredths: those of kept gaps are ranks in 512 bins themselves."""
    whole, span = random_table(7, 3000), (0, 25 * SECOND)
    whole = whole.select(whole.outcome == OK)
    want = block(sample_of(whole, "itl", spans_of(whole, [span])))
    got = block(Tokens.of(Pieces(whole, 50), span).gaps)
    for name in QUANTILES:
        assert got[f"{name}_ci95"] == pytest.approx(want[f"{name}_ci95"], rel=0.02), name


@pytest.mark.parametrize("seed", range(3))
def test_windows_of_a_level_are_counted_together(seed):
    """Two windows at once, their blocks side by side."""
    whole = random_table(seed, 400)
    spans = spans_of(whole, [(2 * SECOND, 6 * SECOND), (9 * SECOND, 14 * SECOND)])
    wanted = block(sample_of(whole, "itl", spans))
    gaps = Gaps(whole, spans, [0.75])
    count_gaps(Pieces(whole), [gaps])
    got = block(gaps)
    for key in ("n", "n_failed", "mean", "max", *QUANTILES, "p95_instrument"):
        assert got[key] == wanted[key], key
    assert gaps.quantile(0.75) == sample_of(whole, "itl", spans).quantile(0.75)


@pytest.mark.parametrize("seed", range(3))
def test_a_windows_figures_from_pieces(seed):
    """What arrived and how much of it was exact, beside figures per request."""
    whole = random_table(seed)
    got, want = (window_summary(x, SECOND, 9 * SECOND) for x in (Pieces(whole), whole))
    assert got == want


def test_bins_are_a_thousandth_wide_and_in_order():
    """Each value lies in its bin, whose edges are next to its neighbours'."""
    draw = np.random.default_rng(1)
    values = np.unique((2 ** draw.uniform(0, 53, 5000)).astype(np.int64))
    values = np.concatenate([[0], values])
    bins = bin_of(values)
    low, above = bin_edges(bins)
    assert (np.diff(bins) >= 0).all()
    assert ((low <= values) & (values < above)).all()
    assert ((above - low) <= np.maximum(values / 1024, 1)).all()
    assert bins.max() < BINS


@pytest.mark.parametrize("kind", ["even", "tight", "wide", "alike"])
def test_order_statistics_are_exact(kind):
    """Any rank, whether values are kept or counted, and how many are at most a value."""
    draw = np.random.default_rng(2)
    values = {
        "even": draw.integers(0, 10**7, 20_000),
        "tight": draw.integers(20_000_000, 20_000_900, 20_000),  # in a bin: counted one by one
        "wide": (10 ** draw.uniform(3, 11, 20_000)).astype(np.int64),  # few in a bin: kept
        "alike": np.full(20_000, 20_000_000),
    }[kind]
    ordered, ranks = np.sort(values), [0, 1, 7, 9_999, 10_000, 19_998, 19_999]
    spread = Spread()
    for part in np.split(values, 5):
        spread.count(bin_of(part))
    spread.want(ranks)
    for part in np.split(values, 4):
        spread.find(part, bin_of(part))
    assert [spread.at(rank) for rank in ranks] == ordered[ranks].tolist()
    for rank in ranks:
        assert spread.up_to(ordered[rank]) == np.searchsorted(ordered, ordered[rank], "right")
