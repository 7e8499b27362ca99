"""Is an SLO met at a level that was held to its end? One planned look at alpha 0.05.

    met           the share over the limit is shown to be below the share allowed
    missed        it is shown to be above
    inconclusive  neither; `needs_more` estimates how many more requests would decide it

Requests of a level are not independent: they share engine steps, queues and bursts. A *unit* is
what a level sends in one request lifetime: `users` requests, one after another. Units are joined to
blocks of about three lifetimes, and counts are divided by the design effect over these blocks.

*Missed*: the binomial's p-value is read as Student's, with a degree of freedom less than there are
blocks. A gross burst of failures has a design effect that swallows it; so a tenth of alpha goes to
whole units: the sum of their shares against as many coins. Of all SLOs and levels of a run, and of
the failures at each, Holm's procedure says which are missed.

*Met*: hits may be few or none, and then say nothing of how they would come. Two more bounds hold:
the requests sent within an eighth of a lifetime count as one (all of a wave), and the design effect
is at least that of the observations above the quantile beyond which twice the allowed share lies.

    counts = [
        counts_of(step.table, w, slos, 0.01, judged=step.judged, gaps=step.tokens.gaps)
        for w, step in counted.steps.items()
    ]
    for level in decide(counts):
        [(one.slo, one.verdict, one.n_over, one.n, one.needs_more) for one in level.slos]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.evidence import HALF
from harness.measure.metrics import METRICS, failed
from harness.measure.result import SloResult
from harness.measure.states import Verdict
from harness.measure.stats import at_least, block_count, design_effects, highest, joined, student

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.evidence import Judged, Window
    from harness.measure.figures import Figures
    from harness.measure.slo import Slo
    from harness.measure.table import RecordTable

    Floats = NDArray[np.float64]

ALPHA: Final = 0.05
ERRORS: Final = "errors"  # stands where an SLO's name does
ERRORS_WEIGHT: Final = 0.1  # of failures in Holm's procedure; an SLO has 1
BURST: Final = 0.1  # the part of alpha that goes to whole units
GUESSED: Final = 0.7  # and the one that a design effect may spend that was estimated, for *met*
TOGETHER: Final = 8  # requests sent within this part of a lifetime count as one, and gaps
MOST_TIMES: Final = 1e4  # as long: more of the same is not thought to decide


@dataclass(frozen=True, slots=True)
class LevelResult:
    """What is said of a level; which users and what quantile that is of, the caller knows."""

    slos: tuple[SloResult, ...]
    errors: SloResult  # missed or inconclusive: few failures need not be shown


@dataclass(frozen=True, slots=True)
class Counts:
    """One SLO (or the failures) at one level; where many are simulated, along a leading axis."""

    slo: str
    allowed: float
    requests: int  # that were sent
    n: Floats  # observations
    k: Floats  # and those over the limit
    lifetimes: Floats  # that the level was held
    units: Floats
    shares: Floats  # of the units, added up
    effect: Floats
    above: Floats | float  # design effect of what lies above a high quantile
    together: float  # observations that surely count as one

    def times(self, factor: Floats) -> Counts:
        """As much of the same as would be seen in `factor` times the time."""
        grows = ("n", "k", "lifetimes", "units", "shares")
        return replace(self, **{name: getattr(self, name) * factor for name in grows})


def counted(
    slo: str,
    allowed: float,
    requests: int,
    sizes: Floats,
    hits: Floats | NDArray[np.bool_],
    *,
    lifetimes: float,
    together: float,
    above: Floats | float = 1.0,
) -> Counts:
    """Counts of slices of a level, of about one size and in the order of time."""
    units = int(np.clip(lifetimes, 1, sizes.shape[-1]))
    sizes, hits = joined(sizes, units), joined(hits, units)
    blocks = min(int(block_count(lifetimes)), units)
    effect = design_effects(joined(sizes, blocks), joined(hits, blocks))
    shares = (hits / np.maximum(sizes, 1)).sum(axis=-1)
    n, k, held = sizes.sum(axis=-1), hits.sum(axis=-1), np.asarray(lifetimes)
    made = (n, k, held, np.asarray(units), shares, effect, above, together)
    return Counts(slo, allowed, requests, *made)


def missed(c: Counts) -> Floats:
    """P-value against a share of at most the one allowed, before Holm's procedure."""
    if not 0 < c.allowed < 1:
        return np.where((c.k > 0) & (c.allowed <= 0), 0.0, 1.0)
    by_block = at_least(c.k / c.effect, c.n / c.effect, c.allowed)
    by_block = student(by_block, block_count(c.lifetimes) - 1) / (1 - BURST)
    return np.minimum(by_block, at_least(c.shares, c.units, c.allowed) / BURST)


def met(c: Counts) -> Floats:
    """P-value against a share of at least the one allowed."""
    clean, effect = c.n - c.k, np.maximum(c.effect, c.above)
    sure = at_least(clean / c.together, c.n / c.together, 1 - c.allowed)
    guess = at_least(clean / effect, c.n / effect, 1 - c.allowed)
    return np.maximum(sure, student(guess, block_count(c.lifetimes) - 1) / GUESSED)


def holm(p: Floats, weights: Floats, alpha: float = ALPHA) -> tuple[NDArray[np.bool_], Floats]:
    """(which are rejected, the level at which each was tested), with weights."""
    rejected, levels, left = np.zeros(len(p), bool), np.zeros(len(p)), float(weights.sum())
    for i in np.argsort(p / weights, kind="stable"):
        levels[i] = alpha * weights[i] / left
        rejected[i] = p[i] <= levels[i]
        if not rejected[i]:
            break
        left -= weights[i]
    return rejected, np.where(rejected, levels, alpha * weights / max(left, 1e-9))


def _needs_more(c: Counts, alpha_missed: float) -> int | None:
    """How many more requests like those seen would decide."""
    test, alpha = (met, ALPHA) if c.k < c.allowed * c.n else (missed, alpha_missed)
    low, high = 1.0, MOST_TIMES
    for _ in range(2):
        times = np.geomspace(low, high, 256)
        decides = test(c.times(times)) <= alpha
        if not decides.any():
            return None
        first = int(np.argmax(decides))
        low, high = times[max(first - 1, 0)], times[first]
    return max(ceil((high - 1) * c.requests), 1)


def _result(c: Counts, alpha: float, *, is_missed: bool) -> SloResult:
    n, k, verdict, more = float(c.n), float(c.k), Verdict.inconclusive, None
    if is_missed:
        verdict = Verdict.missed
    elif c.slo != ERRORS and n > 0:
        verdict = Verdict.met if float(met(c)) <= ALPHA else verdict
        more = None if verdict == Verdict.met else _needs_more(c, alpha)
    return SloResult(
        c.slo, verdict, n=round(n), n_over=round(k), allowed=c.allowed, needs_more=more
    )


def decide(levels: Sequence[Sequence[Counts]]) -> list[LevelResult]:
    """Every SLO and the failures of every level of a run, as `counts_of` counted them."""
    every = [counts for level in levels for counts in level]
    p = np.array([float(missed(c)) for c in every])
    weights = np.array([ERRORS_WEIGHT if c.slo == ERRORS else 1.0 for c in every])
    # where none or all may fail nothing is left to chance, nor where nothing was seen
    tested = np.array([0 < c.allowed < 1 and c.n > 0 for c in every], bool)
    found, alphas = p <= 0, np.zeros(len(p))
    found[tested], alphas[tested] = holm(p[tested], weights[tested])
    each = zip(every, found, alphas, strict=True)
    told = (_result(c, float(alpha), is_missed=bool(is_missed)) for c, is_missed, alpha in each)
    by_level = [[next(told) for _ in level] for level in levels]
    return [LevelResult(tuple(results[:-1]), results[-1]) for results in by_level]


def counts_of(
    table: RecordTable,
    window: Window,
    slos: Sequence[Slo],
    max_errors: float,
    *,
    judged: Judged | None = None,
    gaps: Figures | None = None,
) -> list[Counts]:
    """What a level shows of each SLO and, last, of failures: of the requests sent in its window.

    `table`: requests as they ended (a thin one will do). `judged` and `gaps` have counted the
    window's tokens; only an ITL needs them.
    """
    level = table.select((table.sent_ns >= window.settled_ns) & (table.sent_ns <= window.end_ns))
    level = level.ordered(np.argsort(level.sent_ns, kind="stable"))
    lifetimes = len(level) / max(window.users, 1)
    counts = []
    for slo in slos:
        name, allowed = str(slo), slo.allowed
        if judged is not None and gaps is not None and slo in judged.grids:
            grid = judged.grids[slo]
            sizes, hits = grid.sum(axis=1), grid[:, HALF + 1 :].sum(axis=1)
            together = max(float(sizes.sum()) / (TOGETHER * max(lifetimes, 1)), 1)
            held = {"lifetimes": lifetimes, "together": together}
            above = gaps.effect(1 - 2 * allowed)
            counts.append(counted(name, allowed, len(level), sizes, hits, **held, above=above))
            continue
        observe = METRICS[slo.metric].observe
        assert observe is not None  # noqa: S101 - an SLO is of a latency
        seen = observe(level)
        known = ~(
            np.isinf(seen.hi_ns) & (seen.lo_ns <= slo.limit_ns)
        )  # else open, and not over yet
        ns, sent = seen.ns[known], level.sent_ns[seen.row[known]]
        over = ns > slo.limit_ns
        counts.append(in_order(name, allowed, over, sent, users=window.users, values=ns))
    ended = ~level.is_open
    bad, sent = failed(level)[ended], level.sent_ns[ended]
    return [*counts, in_order(ERRORS, max_errors, bad, sent, users=window.users)]


def in_order(
    slo: str,
    allowed: float,
    over: NDArray[np.bool_],
    sent: NDArray[np.int64] | Floats,
    *,
    users: int,
    values: Floats | None = None,
) -> Counts:
    """Counts of requests in the order in which they were sent, of which some were over a limit.

    `over` and `values` (by which one sees how high ones come) may have a leading axis.
    """
    n, one = len(sent), np.ones(max(len(sent), 1))
    if not n:
        return counted(slo, allowed, 0, 0 * one, 0 * one, lifetimes=0, together=1)
    lifetimes = n / max(users, 1)
    near = (sent[-1] - sent[0]) / lifetimes / (2 * TOGETHER)
    together = np.searchsorted(sent, sent + near, "right") - np.searchsorted(sent, sent - near)
    above: Floats | float = 1.0
    if values is not None:
        blocks, high = int(block_count(lifetimes)), highest(values, 1 - 2 * allowed)
        above = design_effects(joined(one, blocks), joined(high, blocks))
    held = {"lifetimes": lifetimes, "together": float(together.mean())}
    return counted(slo, allowed, n, one, over, **held, above=above)
