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
        return replace(self, **{name: getattr(self, name) * factor for name in grows})


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
    """Counts from slices of a level, of about equal size and in the order of time."""
    units = int(np.clip(lifetimes, 1, sizes.shape[-1]))
    sizes, hits = sum_groups(sizes, units), sum_groups(hits, units)
    blocks = min(int(block_count(lifetimes)), units)
    effect = design_effects(sum_groups(sizes, blocks), sum_groups(hits, blocks))
    shares = (hits / np.maximum(sizes, 1)).sum(axis=-1)
    n, k, held = sizes.sum(axis=-1), hits.sum(axis=-1), np.asarray(lifetimes)
    made = (n, k, held, np.asarray(units), shares, effect, above, together)
    return SloCounts(slo, allowed, requests, *made)


def p_missed(c: SloCounts) -> Floats:
    """P-value against "the share is at most the one allowed", before Holm's procedure."""
    if not 0 < c.allowed < 1:
        return np.where((c.k > 0) & (c.allowed <= 0), 0.0, 1.0)
    by_block = binomial_tail(c.k / c.effect, c.n / c.effect, c.allowed)
    by_block = student_p_value(by_block, block_count(c.lifetimes) - 1) / (1 - BURST_ALPHA_SHARE)
    return np.minimum(by_block, binomial_tail(c.shares, c.units, c.allowed) / BURST_ALPHA_SHARE)


def p_met(c: SloCounts) -> Floats:
    """P-value against "the share is at least the one allowed"."""
    clean, effect = c.n - c.k, np.maximum(c.effect, c.above)
    sure = binomial_tail(clean / c.together, c.n / c.together, 1 - c.allowed)
    guess = binomial_tail(clean / effect, c.n / effect, 1 - c.allowed)
    return np.maximum(
        sure, student_p_value(guess, block_count(c.lifetimes) - 1) / EFFECT_ALPHA_SHARE
    )


def holm(p: Floats, weights: Floats, alpha: float = ALPHA) -> tuple[NDArray[np.bool_], Floats]:
    """Weighted Holm: (which hypotheses are rejected, the alpha that each was tested at)."""
    rejected, levels, left = np.zeros(len(p), bool), np.zeros(len(p)), float(weights.sum())
    for i in np.argsort(p / weights, kind="stable"):
        levels[i] = alpha * weights[i] / left
        rejected[i] = p[i] <= levels[i]
        if not rejected[i]:
            break
        left -= weights[i]
    return rejected, np.where(rejected, levels, alpha * weights / max(left, 1e-9))


def _needs_more(c: SloCounts, alpha_missed: float) -> int | None:
    """How many more requests of the same kind would decide; None: too many or unknown."""
    test, alpha = (p_met, ALPHA) if c.k < c.allowed * c.n else (p_missed, alpha_missed)
    low, high = 1.0, MAX_FACTOR
    # Two passes over a logarithmic grid: the second refines the first interval that decides.
    for _ in range(2):
        times = np.geomspace(low, high, 256)
        decides = test(c.times(times)) <= alpha
        if not decides.any():
            return None
        first = int(np.argmax(decides))
        low, high = times[max(first - 1, 0)], times[first]
    return max(ceil((high - 1) * c.requests), 1)


def _result(c: SloCounts, alpha: float, *, is_missed: bool) -> SloResult:
    n, k, verdict, more = float(c.n), float(c.k), Verdict.inconclusive, None
    if is_missed:
        verdict = Verdict.missed
    elif c.slo != ERROR_RATE and n > 0:
        verdict = Verdict.met if float(p_met(c)) <= ALPHA else verdict
        more = None if verdict == Verdict.met else _needs_more(c, alpha)
    return SloResult(
        c.slo, verdict, n=round(n), n_over=round(k), allowed=c.allowed, needs_more=more
    )


def decide(levels: Sequence[Sequence[SloCounts]]) -> list[LevelResult]:
    """Every SLO and the failures of every level of a run, as `counts_of` counted them."""
    every = [counts for level in levels for counts in level]
    p = np.array([float(p_missed(c)) for c in every])
    weights = np.array([ERRORS_WEIGHT if c.slo == ERROR_RATE else 1.0 for c in every])
    # Without observations there is nothing to test; if none or all may fail, nothing is random.
    tested = np.array([0 < c.allowed < 1 and c.n > 0 for c in every], bool)
    found, alphas = p <= 0, np.zeros(len(p))
    found[tested], alphas[tested] = holm(p[tested], weights[tested])
    each = zip(every, found, alphas, strict=True)
    results = (_result(c, float(alpha), is_missed=bool(is_missed)) for c, is_missed, alpha in each)
    by_level = [[next(results) for _ in level] for level in levels]
    return [LevelResult(tuple(row[:-1]), row[-1]) for row in by_level]


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
    level = table.select((table.sent_ns >= window.settled_ns) & (table.sent_ns <= window.end_ns))
    level = level.ordered(np.argsort(level.sent_ns, kind="stable"))
    users = concurrency(table, window)
    lifetimes = len(level) / users
    counts = []
    for slo in slos:
        name, allowed = str(slo), slo.allowed
        if judged is not None and gaps is not None and slo in judged.grids:
            grid = judged.grids[slo]
            sizes, hits = grid.sum(axis=1), grid[:, BINS_PER_SIDE + 1 :].sum(axis=1)
            together = max(float(sizes.sum()) / (WAVES_PER_LIFETIME * max(lifetimes, 1)), 1)
            held = {"lifetimes": lifetimes, "together": together}
            above = gaps[slo.metric].effect(1 - 2 * allowed)
            counts.append(count_slices(name, allowed, len(level), sizes, hits, **held, above=above))
            continue
        seen = SLO_METRICS[slo.metric].observe(level)
        known = np.isfinite(seen.hi_ns) | (seen.lo_ns > slo.limit_ns)  # else open, not over yet
        ns, sent = seen.ns[known], level.sent_ns[seen.row[known]]
        over = ns > slo.limit_ns
        counts.append(count_in_order(name, allowed, over, sent, users=users, values=ns))
    ended = ~level.is_open
    bad, sent = failed_requests(level)[ended], level.sent_ns[ended]
    return [*counts, count_in_order(ERROR_RATE, max_errors, bad, sent, users=users)]


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
    n, one = len(sent), np.ones(max(len(sent), 1))
    if not n:
        return count_slices(slo, allowed, 0, 0 * one, 0 * one, lifetimes=0, together=1)
    lifetimes = n / users
    near = (sent[-1] - sent[0]) / lifetimes / (2 * WAVES_PER_LIFETIME)
    together = np.searchsorted(sent, sent + near, "right") - np.searchsorted(sent, sent - near)
    above: Floats | float = 1.0
    if values is not None:
        blocks, high = int(block_count(lifetimes)), tail_of(values, 1 - 2 * allowed)
        above = design_effects(sum_groups(one, blocks), sum_groups(high, blocks))
    held = {"lifetimes": lifetimes, "together": float(together.mean())}
    return count_slices(slo, allowed, n, one, over, **held, above=above)
