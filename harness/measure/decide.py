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
        level.verdict, [(r.slo, r.verdict, r.over, r.n, r.needs_more) for r in level.slos]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.evidence import HALF
from harness.measure.metrics import METRICS, failed
from harness.measure.states import Verdict
from harness.measure.stats import at_least, block_count, design_effects, highest, joined, student
from harness.measure.table import OPEN

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
class SloResult:
    """`over` of `n` observations were over the limit, or failed."""

    slo: str  # as `str(Slo)`, or ERRORS
    verdict: Verdict
    over: int
    n: int
    share: float | None  # None: there was none
    allowed: float
    needs_more: int | None  # requests; None: decided, or more of the same would not decide


@dataclass(frozen=True, slots=True)
class LevelResult:
    """What is said of a level."""

    slos: tuple[SloResult, ...]
    errors: SloResult  # missed or inconclusive: few failures need not be shown

    @property
    def verdict(self) -> Verdict:
        """Missed if any is, met if each SLO is and there are some."""
        told = {one.verdict for one in self.slos}
        if Verdict.missed in told | {self.errors.verdict}:
            return Verdict.missed
        return Verdict.met if told == {Verdict.met} else Verdict.inconclusive


@dataclass(frozen=True, slots=True)
class Counts:
    """One SLO (or the failures) at one level; where many are simulated, along a leading axis."""

    slo: str
    allowed: float
    sizes: Floats  # observations per unit
    hits: Floats  # and those over the limit
    lifetimes: float  # that the level was held
    requests: int  # that this took
    together: float  # observations that surely count as one
    above: Floats | float = 1.0  # design effect of what lies above a high quantile


@dataclass(frozen=True, slots=True)
class _Sums:
    """All that the tests look at."""

    n: Floats
    k: Floats
    lifetimes: Floats
    units: Floats
    shares: Floats  # the sum of the units'
    effect: Floats
    above: Floats
    together: float

    def times(self, factor: Floats) -> _Sums:
        """As much of the same as would be seen in `factor` times the time."""
        grows = ("n", "k", "lifetimes", "units", "shares")
        return replace(self, **{name: getattr(self, name) * factor for name in grows})


def _sums(c: Counts) -> _Sums:
    units = int(np.clip(c.lifetimes, 1, c.sizes.shape[-1]))
    sizes, hits = joined(c.sizes, units), joined(c.hits, units)
    blocks = min(int(block_count(c.lifetimes)), units)
    effect = design_effects(joined(sizes, blocks), joined(hits, blocks))
    shares = (hits / np.maximum(sizes, 1)).sum(axis=-1)
    n, k, lifetimes = sizes.sum(axis=-1), hits.sum(axis=-1), np.asarray(c.lifetimes)
    above = np.asarray(c.above)
    return _Sums(n, k, lifetimes, np.asarray(units), shares, effect, above, c.together)


def _missed(s: _Sums, allowed: float) -> Floats:
    """P-value against a share of at most `allowed`."""
    if not 0 < allowed < 1:
        return np.where(s.k > 0, 0.0, 1.0) if allowed <= 0 else np.ones(s.k.shape)
    blocks = block_count(s.lifetimes)
    by_block = student(at_least(s.k / s.effect, s.n / s.effect, allowed), blocks - 1)
    by_unit = at_least(s.shares, s.units, allowed)
    return np.minimum(np.minimum(by_block / (1 - BURST), by_unit / BURST), 1)


def _met(s: _Sums, allowed: float) -> Floats:
    """P-value against a share of at least `allowed`."""
    if not 0 < allowed < 1:
        return np.ones(s.k.shape)
    clean, effect = s.n - s.k, np.maximum(s.effect, s.above)
    sure = at_least(clean / s.together, s.n / s.together, 1 - allowed)
    guess = at_least(clean / effect, s.n / effect, 1 - allowed)
    return np.maximum(sure, student(guess, block_count(s.lifetimes) - 1) / GUESSED)


def p_values(counts: Counts) -> tuple[Floats, Floats]:
    """(p-value of *met*, p-value of *missed* before Holm's procedure)."""
    sums = _sums(counts)
    return _met(sums, counts.allowed), _missed(sums, counts.allowed)


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


def _needs_more(c: Counts, sums: _Sums, alpha_missed: float) -> int | None:
    """How many more requests like those seen would decide."""
    test, alpha = (_met, ALPHA) if sums.k < c.allowed * sums.n else (_missed, alpha_missed)
    low, high = 1.0, MOST_TIMES
    for _ in range(2):
        times = np.geomspace(low, high, 256)
        decides = test(sums.times(times), c.allowed) <= alpha
        if not decides.any():
            return None
        first = int(np.argmax(decides))
        low, high = times[max(first - 1, 0)], times[first]
    return max(ceil((high - 1) * c.requests), 1)


def decide(levels: Sequence[Sequence[Counts]]) -> list[LevelResult]:
    """Every SLO and the failures of every level of a run, as `counts_of` counted them."""
    every = [(counts, _sums(counts)) for level in levels for counts in level]
    p = np.array([float(_missed(sums, counts.allowed)) for counts, sums in every])
    weights = np.array([ERRORS_WEIGHT if c.slo == ERRORS else 1.0 for c, _ in every])
    # where none or all may fail nothing is left to chance, nor where nothing was seen
    tested = np.array([0 < c.allowed < 1 and s.n > 0 for c, s in every], bool)
    missed, alphas = p <= 0, np.zeros(len(p))
    missed[tested], alphas[tested] = holm(p[tested], weights[tested])
    results = []
    for (c, sums), is_missed, alpha in zip(every, missed, alphas, strict=True):
        n, k, verdict, more = float(sums.n), float(sums.k), Verdict.inconclusive, None
        if is_missed:
            verdict = Verdict.missed
        elif c.slo != ERRORS and n > 0:
            if float(_met(sums, c.allowed)) <= ALPHA:
                verdict = Verdict.met
            else:
                more = _needs_more(c, sums, float(alpha))
        share = k / n if n else None
        results.append(SloResult(c.slo, verdict, round(k), round(n), share, c.allowed, more))
    told, each = iter(results), []
    for level in levels:
        *slos, errors = (next(told) for _ in level)
        each.append(LevelResult(tuple(slos), errors))
    return each


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
    sent_in = (table.sent_ns >= window.settled_ns) & (table.sent_ns <= window.end_ns)
    row = np.flatnonzero(sent_in)[np.argsort(table.sent_ns[sent_in], kind="stable")]
    place = np.full(len(table), -1)
    place[row] = np.arange(len(row))  # the how many-th of those sent in the window
    lifetimes = len(row) / max(window.users, 1)
    counts = []
    for slo in slos:
        if slo.metric == "itl" and judged is not None and gaps is not None:
            grid = judged.grids[slo]
            sizes, hits = grid.sum(axis=1), grid[:, HALF + 1 :].sum(axis=1)
            together = float(max(sizes.sum() / (TOGETHER * max(lifetimes, 1)), 1))
            above = gaps.effect(1 - 2 * slo.allowed)
            counts.append(
                Counts(str(slo), slo.allowed, sizes, hits, lifetimes, len(row), together, above)
            )
            continue
        observe = METRICS[slo.metric].observe
        assert observe is not None  # noqa: S101 - an SLO is of a latency
        seen = observe(table)
        unknown = np.isinf(seen.hi_ns) & (seen.lo_ns <= slo.limit_ns)  # open, and not over it yet
        keep = np.flatnonzero((place[seen.row] >= 0) & ~unknown)
        keep = keep[np.argsort(place[seen.row[keep]])]
        ns, sent = seen.ns[keep], table.sent_ns[seen.row[keep]]
        counts.append(
            in_order(str(slo), slo.allowed, ns > slo.limit_ns, sent, users=window.users, values=ns)
        )
    ended = row[table.outcome[row] != OPEN]
    bad, sent = failed(table)[ended], table.sent_ns[ended]
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
    n = len(sent)
    if not n:
        return Counts(slo, allowed, np.zeros(1), np.zeros(1), 0.0, 0, 1.0)
    lifetimes = n / max(users, 1)
    near = (sent[-1] - sent[0]) / lifetimes / (2 * TOGETHER)
    together = np.searchsorted(sent, sent + near, "right") - np.searchsorted(sent, sent - near)
    above: Floats | float = 1.0
    if values is not None:
        blocks = int(block_count(lifetimes))
        above = design_effects(
            joined(np.ones(n), blocks), joined(highest(values, 1 - 2 * allowed), blocks)
        )
    units = max(int(lifetimes), 1)
    return Counts(
        slo, allowed, joined(np.ones(n), units), joined(over, units), lifetimes, n,
        float(together.mean()), above,
    )  # fmt: skip
