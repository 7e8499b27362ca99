"""Does a level pass or fail? A sequential test that may be evaluated every second.

For each SLO the share of observations over the limit is tested against the share allowed, by a
mixture likelihood ratio (a Beta prior with its mean at the allowed share). This is an e-process:
the error rate holds however often one looks, unlike repeated 95% intervals, which were wrong
24% of the time. Correlated observations count as n / design effect.

Clean requests needed to pass a p95 at alpha 0.05 / 8: 126 (a single planned look would need 99).

While users never pause, each side has a test of its own (`judge_sides`).

*Over*: a design effect that is estimated at the observed share makes gross violations look like
noise, as a level with every block over the limit has shown few blocks. So the blocks' means are
bet on, too, which assumes no variance. *Under*: block means alone would need 59 clean blocks for a
p95. What is assumed in their place: requests forget each other within 14 lifetimes, the least time
for which a level is held before it passes, and the design effect is at least the square root of
that of the highest observations, twice as many as are allowed, of which there always are some.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma, log
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.states import Decision
from harness.metrics.statistics import design_effect
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.metrics.evidence import Evidence
    from harness.metrics.slo import Slo

    Floats = NDArray[np.float64]

PRIOR_WEIGHT: Final = 10  # observations the prior is worth
# Shares over the limit, in times of the share allowed, that a one-sided test compares with it.
UNDER: Final = np.array([0.0, 0.3, 0.55, 0.75, 0.88, 0.95])
OVER: Final = np.array([1.06, 1.15, 1.35, 1.8, 3.0, 8.0])
MAX_SHARE: Final = 0.99
PASS_LIFETIMES: Final = 14  # for which a level is held before it passes
FAIL_BLOCKS: Final = 6  # that estimate a design effect before a level fails by it
# Parts of what may be lost that are bet on a block, how the first capital is split among them, and
# how much more of alpha bets may spend: they rarely win by chance unless by very much.
BETS: Final = np.array([0.3, 0.6, 0.9])
BET_WEIGHTS: Final = np.array([0.15, 0.4, 0.45])
BETS_ALPHA: Final = 5
MAX_LOG: Final = 600.0  # so that its exponential is finite


@dataclass(frozen=True, slots=True)
class Judgement:
    """The decision, the sentence that explains it, and whether the data leans to a failure."""

    decision: Decision
    reason: str
    leans_to_fail: bool


def log_evidence(n: float, k: float, allowed: float) -> float:
    """Log of the mixture likelihood ratio against `share == allowed`; k of n are over the limit."""
    a, b = PRIOR_WEIGHT * allowed, PRIOR_WEIGHT * (1 - allowed)
    mixture = lgamma(a + k) + lgamma(b + n - k) - lgamma(a + b + n)
    prior = lgamma(a) + lgamma(b) - lgamma(a + b)
    return mixture - prior - k * log(allowed) - (n - k) * log(1 - allowed)


def judge_share(n: float, k: float, allowed: float, alpha: float, effect: float = 1.0) -> Decision:
    """Passed: the share is below `allowed`; failed: above; each at error rate alpha.

    An allowed share of 0 fails with the first hit, one of 1 never; neither can be shown to pass.
    """
    if not 0 < allowed < 1:
        return Decision.failed if allowed <= 0 < k else Decision.inconclusive
    if n <= 0 or log_evidence(n / effect, k / effect, allowed) < -log(alpha):
        return Decision.inconclusive
    return Decision.failed if k / n > allowed else Decision.passed


def log_one_sided(n: float, k: float, allowed: float) -> float:
    """As `log_evidence`, with a mixture of shares on the side of the observed one only."""
    share = np.minimum((OVER if k > allowed * n else UNDER) * allowed, MAX_SHARE)
    each = k * np.log(np.maximum(share, 1e-300) / allowed)
    each += (n - k) * np.log((1 - share) / (1 - allowed))
    return float(each.max() + np.log(np.mean(np.exp(each - each.max()))))


def log_bets(sizes: Floats, hits: Floats, allowed: float) -> float:
    """Log of the capital won by betting that the mean of each block is over the share allowed.

    While it is not, no bet is expected to win: at any time a capital of 1 / alpha has been seen at
    a rate of at most alpha (a betting e-process; Waudby-Smith and Ramdas, 2024). Neighboring blocks
    resemble each other, so two games are played, each on every other block, and averaged.
    """
    means = hits[sizes > 0] / sizes[sizes > 0]
    bets = BETS[:, None] / allowed
    won = [np.log1p(bets * (means[i::2] - allowed)).sum(axis=1) for i in (0, 1)]
    return float(np.log(np.mean(np.exp(np.minimum(won, MAX_LOG)) @ BET_WEIGHTS)))


def judge_sides(evidence: Evidence, slo: int, allowed: float, alpha: float) -> Decision:
    """As `judge_share`, where users never pause: a test of each side."""
    sizes, hits = evidence.over(slo)
    n, k = float(sizes.sum()), float(hits.sum())
    over = k > allowed * n
    effect = evidence.effect(slo, allowed) if over else evidence.floored_effect(slo, allowed)
    shown = log_one_sided(n / effect, k / effect, allowed) >= -log(alpha)
    if over:
        shown &= len(sizes) >= FAIL_BLOCKS
        shown |= log_bets(sizes, hits, allowed) >= -log(BETS_ALPHA * alpha)
        return Decision.failed if shown else Decision.inconclusive
    long = evidence.seconds * SECOND >= PASS_LIFETIMES * evidence.lifetime_ns
    return Decision.passed if shown and long else Decision.inconclusive


def too_many_errors(evidence: Evidence, max_errors: float, alpha: float) -> bool:
    """Whether more requests fail than allowed, at error rate alpha."""
    ended, errors = evidence.ended.sum(), evidence.errors.sum()
    effect = design_effect(evidence.ended, evidence.errors)
    return judge_share(ended, errors, max_errors, alpha, effect) == Decision.failed


def judge(
    evidence: Evidence, slos: Sequence[Slo], alpha: float, max_errors: float = 0.01
) -> Judgement:
    """Judge all SLOs of a level and its error rate. `alpha`: this level's part of the run's."""
    if too_many_errors(evidence, max_errors, alpha):
        ended, errors = evidence.ended.sum(), evidence.errors.sum()
        return Judgement(
            Decision.failed, f"{errors:.0f} of {ended:.0f} requests failed", leans_to_fail=True
        )
    if evidence.unstable:  # its latencies are a matter of how long it is held
        return Judgement(Decision.failed, evidence.unstable, leans_to_fail=True)
    decisions, leans, worst = [], False, ("", -1.0)
    for i, slo in enumerate(slos):
        sizes, hits = evidence.over(i)
        n, k = sizes.sum(), hits.sum()
        if evidence.plain and n and 0 < slo.allowed < 1:
            decisions.append(judge_sides(evidence, i, slo.allowed, alpha / len(slos)))
        else:
            effect = evidence.effect(i, slo.allowed)
            decisions.append(judge_share(n, k, slo.allowed, alpha / len(slos), effect))
        leans |= bool(n and k / n > slo.allowed)
        share = k / n / slo.allowed if n else 0.0
        if share > worst[1]:
            worst = (f"{k:.0f} of {n:.0f} {slo.beyond} {slo}", share)
    decision = Decision.inconclusive
    if Decision.failed in decisions:
        decision = Decision.failed
    elif set(decisions) == {Decision.passed}:
        decision = Decision.passed
    return Judgement(decision, worst[0], leans)
