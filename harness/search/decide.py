"""Is an SLO met at a level that was held to its end? One planned test at alpha 0.05.

    met           the share over the limit is shown to be below the share allowed
    missed        it is shown to be above
    inconclusive  neither; `needs_more` estimates how many more requests would decide it

Requests of a level are not independent: they share engine steps, queues and bursts. A *unit* is
what a level sends in one request lifetime: `users` requests, one after another. Units are grouped
into blocks of about three lifetimes, and counts are divided by the design effect over these blocks.

*Missed*: the binomial p-value is converted to Student's t, with one degree of freedom less than
there are blocks. A single large burst of failures inflates the design effect until this test cannot
see it; so a tenth of alpha is spent on whole units: the sum of their shares is tested as that
many coins. Holm's procedure over all SLOs and levels of a run, and the failures at each level, then
decides which are missed.

*Met*: there may be few hits or none, and then they do not show how hits cluster. Two more bounds
apply: the requests sent within an eighth of a lifetime (a wave) count as one, and the design effect
is at least that of the observations in the upper tail of twice the allowed share.

    counts = [
        counts_of(step.table, w, slos, 0.01, judged=step.judged, gaps=step.tokens.gaps)
        for w, step in steps.items()
    ]
    for level in decide(counts):
        [(one.slo, one.verdict, one.n_over, one.n, one.needs_more) for one in level.slos]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.arrays import between
from harness.core.states import Verdict
from harness.metrics.evidence import BINS_PER_SIDE, concurrency
from harness.metrics.metrics import SLO_METRICS, failed_requests
from harness.metrics.result import SloResult
from harness.metrics.statistics import (
    binomial_tail,
    block_count,
    design_effects,
    student_p_value,
    sum_groups,
    tail_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from harness.metrics.evidence import EvidenceCounter, Window
    from harness.metrics.latency_figures import LatencyFigures
    from harness.metrics.slo import Slo
    from harness.records.record_table import RecordTable

    Floats = NDArray[np.float64]

ALPHA: Final = 0.05
ERROR_RATE: Final = "errors"  # in the place of an SLO's name
ERRORS_WEIGHT: Final = 0.1  # weight of failures in Holm's procedure; an SLO has 1
BURST_ALPHA_SHARE: Final = 0.1  # part of alpha spent on whole units
# For *met*: part of alpha that the test with an estimated design effect may spend.
EFFECT_ALPHA_SHARE: Final = 0.7
WAVES_PER_LIFETIME: Final = 8  # requests (or gaps) within 1/8 of a lifetime count as one
MAX_FACTOR: Final = 1e4  # times as long; more of the same is not expected to decide


@dataclass(frozen=True, slots=True)
class LevelResult:
    """The verdicts of one level; the caller adds its users and the observed quantiles."""

    slos: tuple[SloResult, ...]
    errors: SloResult  # missed or inconclusive; that failures are few is never tested


@dataclass(frozen=True, slots=True)
class SloCounts:
    """One SLO (or the failures) at one level; simulations add a leading axis to the arrays."""

    slo: str
    allowed: float
    requests: int  # requests sent
    n: Floats  # observations
    k: Floats  # observations over the limit
    lifetimes: Floats  # how long the level was held, in request lifetimes
    units: Floats
    shares: Floats  # sum of the units' shares over the limit
    effect: Floats  # design effect
    above: Floats | float  # design effect of the observations above a high quantile
    together: float  # observations that certainly count as one

    def times(self, factor: Floats) -> SloCounts:
        """The same counts as they would be after `factor` times the time."""
        grows = ("n", "k", "lifetimes", "units", "shares")
        grown = {name: getattr(self, name) * factor for name in grows}
        return replace(self, **grown)


def count_slices(
    slo: str,
    allowed: float,
    requests: int,
    sizes: Floats,
    hits: Floats | NDArray[np.bool_],
    *,
    lifetimes: float,
    together: float,
    above: Floats | float = 1.0,
) -> SloCounts:
    """Counts from slices of a level, of about equal size and in the order of time.

    `sizes`: the observations in each slice; `hits`: those over the limit; the rest as in SloCounts.
    """
    # As many units as lifetimes: at least one, and none without a slice of its own.
    n_units = int(np.clip(lifetimes, 1, sizes.shape[-1]))
    unit_sizes = sum_groups(sizes, n_units)
    unit_hits = sum_groups(hits, n_units)
    unit_shares = unit_hits / np.maximum(unit_sizes, 1)
    n_blocks = min(int(block_count(lifetimes)), n_units)
    block_sizes = sum_groups(unit_sizes, n_blocks)
    block_hits = sum_groups(unit_hits, n_blocks)
    effect = design_effects(block_sizes, block_hits)
    return SloCounts(
        slo,
        allowed,
        requests,
        n=unit_sizes.sum(axis=-1),
        k=unit_hits.sum(axis=-1),
        lifetimes=np.asarray(lifetimes),
        units=np.asarray(n_units),
        shares=unit_shares.sum(axis=-1),
        effect=effect,
        above=above,
        together=together,
    )


def _discounted_tail(k: Floats, n: Floats, effect: Floats | float, share: float) -> Floats:
    """P-value of k of n or more, if n observations are worth n / effect independent ones."""
    return binomial_tail(k / effect, n / effect, share)


def p_missed(c: SloCounts) -> Floats:
    """P-value against "the share is at most the one allowed", before Holm's procedure."""
    if not 0 < c.allowed < 1:
        return np.where((c.k > 0) & (c.allowed <= 0), 0.0, 1.0)
    # By blocks: as many independent observations as the design effect leaves of them.
    p_blocks = _discounted_tail(c.k, c.n, c.effect, c.allowed)
    p_blocks = student_p_value(p_blocks, block_count(c.lifetimes) - 1)
    # By whole units, which a single large burst cannot hide from.
    p_units = binomial_tail(c.shares, c.units, c.allowed)
    # One of the two is enough, so each may spend only its part of alpha.
    return np.minimum(p_blocks / (1 - BURST_ALPHA_SHARE), p_units / BURST_ALPHA_SHARE)


def p_met(c: SloCounts) -> Floats:
    """P-value against "the share is at least the one allowed"."""
    n_under = c.n - c.k
    # With every wave counted as one observation, which it is at worst.
    p_sure = _discounted_tail(n_under, c.n, c.together, 1 - c.allowed)
    # With the design effect that was seen, of which the test does not know how exact it is.
    effect = np.maximum(c.effect, c.above)
    p_estimated = _discounted_tail(n_under, c.n, effect, 1 - c.allowed)
    p_estimated = student_p_value(p_estimated, block_count(c.lifetimes) - 1)
    # Both must show it, so the larger p-value counts.
    return np.maximum(p_sure, p_estimated / EFFECT_ALPHA_SHARE)


def holm(p: Floats, weights: Floats, alpha: float = ALPHA) -> tuple[NDArray[np.bool_], Floats]:
    """Weighted Holm: (which hypotheses are rejected, the alpha that each was tested at)."""
    rejected = np.zeros(len(p), bool)
    tested_at = np.zeros(len(p))
    weight_left = float(weights.sum())
    for i in np.argsort(p / weights, kind="stable"):
        tested_at[i] = alpha * weights[i] / weight_left
        rejected[i] = p[i] <= tested_at[i]
        if not rejected[i]:
            break
        weight_left -= weights[i]
    # Those left would be tested next at what is left of the weights.
    next_alphas = alpha * weights / max(weight_left, 1e-9)
    return rejected, np.where(rejected, tested_at, next_alphas)


def _needs_more(c: SloCounts, alpha_missed: float) -> int | None:
    """How many more requests of the same kind would decide; None: too many or unknown."""
    if c.k < c.allowed * c.n:
        test = p_met
        alpha = ALPHA
    else:
        test = p_missed
        alpha = alpha_missed
    low = 1.0
    high = MAX_FACTOR
    # Two passes over a logarithmic grid: the second refines the first interval that decides.
    for _ in range(2):
        times = np.geomspace(low, high, 256)
        decides = test(c.times(times)) <= alpha
        if not decides.any():
            return None
        first = int(np.argmax(decides))
        low = times[max(first - 1, 0)]
        high = times[first]
    return max(ceil((high - 1) * c.requests), 1)


def _result(c: SloCounts, alpha: float, *, is_missed: bool) -> SloResult:
    verdict = Verdict.inconclusive
    needs_more = None
    if is_missed:
        verdict = Verdict.missed
    elif c.slo != ERROR_RATE and c.n > 0:
        if float(p_met(c)) <= ALPHA:
            verdict = Verdict.met
        else:
            needs_more = _needs_more(c, alpha)
    return SloResult(
        c.slo,
        verdict,
        n=round(float(c.n)),
        n_over=round(float(c.k)),
        allowed=c.allowed,
        needs_more=needs_more,
    )


def decide(levels: Sequence[Sequence[SloCounts]]) -> list[LevelResult]:
    """Every SLO and the failures of every level of a run, as `counts_of` counted them."""
    hypotheses = [counts for level in levels for counts in level]
    p = np.array([float(p_missed(c)) for c in hypotheses])
    weights = np.array([ERRORS_WEIGHT if c.slo == ERROR_RATE else 1.0 for c in hypotheses])
    # Without observations there is nothing to test; if none or all may fail, nothing is random.
    is_tested = [0 < c.allowed < 1 and c.n > 0 for c in hypotheses]
    tested = np.array(is_tested, bool)
    # A p-value of 0 is no estimate: nothing may be over the limit, and something is.
    are_missed = p <= 0
    alphas = np.zeros(len(p))
    are_missed[tested], alphas[tested] = holm(p[tested], weights[tested])
    outcomes = zip(alphas, are_missed, strict=True)  # in the order of the hypotheses
    decided = []
    for level in levels:
        results = []
        for c in level:
            alpha, is_missed = next(outcomes)
            results.append(_result(c, float(alpha), is_missed=bool(is_missed)))
        *slos, errors = results
        decided.append(LevelResult(tuple(slos), errors))
    return decided


def counts_of(
    table: RecordTable,
    window: Window,
    slos: Sequence[Slo],
    max_errors: float,
    *,
    judged: EvidenceCounter | None = None,
    gaps: Mapping[str, LatencyFigures] | None = None,
) -> list[SloCounts]:
    """The counts of each SLO and, last, of failures, for the requests sent in a level's window.

    `table`: requests as they ended (thinned out is enough). `judged` and `gaps`: the counted tokens
    of the window; only SLOs on gaps need them.
    """
    was_sent = between(table.sent_ns, window.settled_ns, window.end_ns)
    requests = table.select(was_sent)
    requests = requests.ordered(np.argsort(requests.sent_ns, kind="stable"))
    users = concurrency(table, window)
    counts = []
    for slo in slos:
        if judged is not None and gaps is not None and slo in judged.grids:
            high_effect = gaps[slo.metric].effect(1 - 2 * slo.allowed)
            counts.append(_count_gaps(slo, judged.grids[slo], len(requests), users, high_effect))
        else:
            counts.append(_count_latencies(slo, requests, users))
    ended = ~requests.is_open
    failed = failed_requests(requests)[ended]
    sent_ns = requests.sent_ns[ended]
    counts.append(count_in_order(ERROR_RATE, max_errors, failed, sent_ns, users=users))
    return counts


def _count_gaps(
    slo: Slo, grid: Floats, requests: int, users: float, high_effect: float
) -> SloCounts:
    """The gaps between tokens over a limit; `grid`: of an EvidenceCounter.

    `high_effect`: the design effect of the highest gaps, twice as many as are allowed over it.
    """
    sizes = grid.sum(axis=1)
    hits = grid[:, BINS_PER_SIDE + 1 :].sum(axis=1)
    lifetimes = requests / users
    waves = WAVES_PER_LIFETIME * max(lifetimes, 1)
    together = max(float(sizes.sum()) / waves, 1)
    return count_slices(
        str(slo),
        slo.allowed,
        requests,
        sizes,
        hits,
        lifetimes=lifetimes,
        together=together,
        above=high_effect,
    )


def _count_latencies(slo: Slo, requests: RecordTable, users: float) -> SloCounts:
    """The requests over a limit, which are in the order in which they were sent."""
    latencies = SLO_METRICS[slo.metric].observe(requests)
    # An open request counts as soon as it is over the limit.
    known = np.isfinite(latencies.hi_ns) | (latencies.lo_ns > slo.limit_ns)
    ns = latencies.ns[known]
    over = ns > slo.limit_ns
    sent_ns = requests.sent_ns[latencies.row[known]]
    return count_in_order(str(slo), slo.allowed, over, sent_ns, users=users, values=ns)


def count_in_order(
    slo: str,
    allowed: float,
    over: NDArray[np.bool_],
    sent: NDArray[np.int64] | Floats,
    *,
    users: float,
    values: Floats | None = None,
) -> SloCounts:
    """Counts of requests in the order in which they were sent; `over`: which exceed the limit.

    `values` show how the highest ones cluster. `over` and `values` may have a leading axis.
    """
    n = len(sent)
    if not n:
        empty = np.zeros(1)
        return count_slices(slo, allowed, 0, empty, empty, lifetimes=0, together=1)
    sizes = np.ones(n)
    lifetimes = n / users
    # How many requests were sent within half a wave before or after each one.
    lifetime_ns = (sent[-1] - sent[0]) / lifetimes
    half_wave_ns = lifetime_ns / (2 * WAVES_PER_LIFETIME)
    n_until = np.searchsorted(sent, sent + half_wave_ns, "right")
    n_before = np.searchsorted(sent, sent - half_wave_ns)
    together = float((n_until - n_before).mean())
    above: Floats | float = 1.0
    if values is not None:
        blocks = int(block_count(lifetimes))
        high = tail_of(values, 1 - 2 * allowed)
        above = design_effects(sum_groups(sizes, blocks), sum_groups(high, blocks))
    return count_slices(
        slo,
        allowed,
        n,
        sizes,
        over,
        lifetimes=lifetimes,
        together=together,
        above=above,
    )
