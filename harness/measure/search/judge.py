"""Does a level pass or fail? A sequential test that may be evaluated every second.

For each SLO the share of observations over the limit is tested against the share allowed, by a
mixture likelihood ratio (a Beta prior with its mean at the allowed share). This is an e-process:
the error rate holds however often one looks, unlike repeated 95% intervals, which were wrong
24% of the time. Correlated observations count as n / design effect.

Clean requests needed to pass a p95 at alpha 0.05 / 8: 126 (a single planned look would need 99).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma, log
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.search.statistics import design_effect
from harness.measure.states import Decision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.search.evidence import Evidence
    from harness.measure.slo import Slo

    Floats = NDArray[np.float64]

PRIOR_WEIGHT: Final = 10  # observations the prior is worth
BETS: Final = (0.3, 0.6, 0.9)
BET_WEIGHTS: Final = np.array([0.15, 0.4, 0.45])
MAX_LOG: Final = 600.0  # so that its exponential is finite
import os
PASS_LIFETIMES: Final = int(os.environ.get('PL','8'))
SIDEO = float(os.environ.get('SIDEO','2'))
SIDE = float(os.environ.get('SIDE','1'))
UNDER_RATIOS: Final = (0.0, 0.3, 0.55, 0.75, 0.88, 0.95)
OVER_RATIOS: Final = (1.06, 1.15, 1.35, 1.8, 3.0, 8.0)
OVER_SHARE: Final = 4  # times a level's alpha: of bets on gross violations


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


def log_over(sizes: Floats, hits: Floats, allowed: float) -> float:
    """Log of the capital won by betting that the share in each block is over the one allowed.

    While it is not, no strategy is expected to win, however often one looks: a capital of 1 / alpha
    is seen at a rate of alpha at most (betting e-process; Waudby-Smith and Ramdas, 2024). Three
    players bet on each block these parts of what one may lose. Neighboring blocks resemble each
    other, so two such games are played, over every other block each, and averaged.
    """
    mean = hits[sizes > 0] / sizes[sizes > 0]
    bets = np.array(BETS)[:, None] / allowed
    won = [np.log1p(bets * (mean[i::2] - allowed)).sum(axis=1) for i in (0, 1)]
    return float(np.log(np.mean(np.exp(np.minimum(won, MAX_LOG)) @ BET_WEIGHTS)))


def log_sided(n: float, k: float, allowed: float) -> float:
    """As `log_evidence`, against the shares on one side only: that of the observed one."""
    sides = OVER_RATIOS if k > allowed * n else UNDER_RATIOS
    share = np.minimum(np.array(sides) * allowed, 0.99)
    each = k * np.log(np.maximum(share, 1e-300) / allowed) + (n - k) * np.log((1 - share) / (1 - allowed))
    return float(each.max() + np.log(np.mean(np.exp(each - each.max()))))


def judge_twice(evidence: Evidence, slo: int, allowed: float, alpha: float) -> Decision:
    """Two tests."""
    sizes, hits = evidence.over(slo)
    n, k = sizes.sum(), hits.sum()
    over = k > allowed * n
    effect = evidence.effect(slo, allowed, floor=not over)
    if log_sided(n / effect, k / effect, allowed) >= -log(alpha * (SIDEO if over else SIDE)):
        if over:
            return Decision.failed
        return Decision.passed if evidence.seconds * 1e9 >= PASS_LIFETIMES * evidence.lifetime_ns else Decision.inconclusive
    gross = log_over(sizes, hits, allowed) >= -log(OVER_SHARE * alpha)
    return Decision.failed if gross else Decision.inconclusive


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
        share_alpha = alpha / len(slos)
        if evidence.plain and n and 0 < slo.allowed < 1:
            decisions.append(judge_twice(evidence, i, slo.allowed, share_alpha))
        else:
            effect = evidence.effect(i, slo.allowed)
            decisions.append(judge_share(n, k, slo.allowed, share_alpha, effect))
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
