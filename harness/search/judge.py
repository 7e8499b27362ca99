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
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from harness.metrics.evidence import Evidence
    from harness.metrics.slo import Slo

    Floats = NDArray[np.float64]

PRIOR_WEIGHT: Final = 10  # observations the prior is worth
# Shares over the limit, in times of the share allowed, that a one-sided test compares with it, and
# the weight of each in the mixture: most for those of levels that a search holds to decide them.
UNDER: Final = np.array([0.0, 0.3, 0.55, 0.75, 0.88, 0.95])
UNDER_WEIGHTS: Final = np.array([0.17, 0.25, 0.25, 0.2, 0.08, 0.05])
OVER: Final = np.array([1.06, 1.15, 1.35, 1.8, 3.0, 8.0])
OVER_WEIGHTS: Final = np.array([0.05, 0.1, 0.25, 0.3, 0.18, 0.12])
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
    # The mixture is a Beta distribution around the share allowed (decision 4).
    a = PRIOR_WEIGHT * allowed
    b = PRIOR_WEIGHT * (1 - allowed)
    mixture = lgamma(a + k) + lgamma(b + n - k) - lgamma(a + b + n)
    prior = lgamma(a) + lgamma(b) - lgamma(a + b)
    return mixture - prior - k * log(allowed) - (n - k) * log(1 - allowed)


def judge_share(n: float, k: float, allowed: float, alpha: float, effect: float = 1.0) -> Decision:
    """Passed: the share is below `allowed`; failed: above; each at error rate alpha.

    An allowed share of 0 fails with the first hit, one of 1 never; neither can be shown to pass.
    """
    if not 0 < allowed < 1:
        return Decision.failed if allowed <= 0 < k else Decision.inconclusive
    if n <= 0:
        return Decision.inconclusive
    is_shown = log_evidence(n / effect, k / effect, allowed) >= -log(alpha)
    if not is_shown:
        return Decision.inconclusive
    return Decision.failed if k / n > allowed else Decision.passed


def log_one_sided(n: float, k: float, allowed: float) -> float:
    """As `log_evidence`, with a mixture of shares on the side of the observed one only."""
    is_over = k > allowed * n
    multiples = OVER if is_over else UNDER
    weights = OVER_WEIGHTS if is_over else UNDER_WEIGHTS
    # A share of 1 would be refuted for good by a single observation within the limit.
    shares = np.minimum(multiples * allowed, MAX_SHARE)
    # The log likelihood ratio of each share of the mixture, then the log of their weighted mean.
    # 1e-300 stands for the share of 0: without a hit its term has to be 0, and 0 log(0) is NaN.
    log_ratios = k * np.log(np.maximum(shares, 1e-300) / allowed)
    log_ratios += (n - k) * np.log((1 - shares) / (1 - allowed))
    # Relative to the highest one, since the exponential of a log ratio may not be finite.
    highest = log_ratios.max()
    mean_ratio = weights @ np.exp(log_ratios - highest)
    return float(highest + np.log(mean_ratio))


def log_bets(sizes: Floats, hits: Floats, allowed: float) -> float:
    """Log of the capital won by betting that the mean of each block is over the share allowed.

    While it is not, no bet is expected to win: at any time a capital of 1 / alpha has been seen at
    a rate of at most alpha (a betting e-process; Waudby-Smith and Ramdas, 2024). Neighboring blocks
    resemble each other, so two games are played, each on every other block, and averaged.
    """
    has_any = sizes > 0
    means = hits[has_any] / sizes[has_any]
    # In parts of the share allowed, as no block's mean is further below it: no bet loses
    # everything.
    bets = BETS[:, None] / allowed
    beyond = means - allowed
    games = (beyond[0::2], beyond[1::2])
    log_won = [np.log1p(bets * game).sum(axis=1) for game in games]
    won = np.exp(np.minimum(log_won, MAX_LOG))
    capital_of_games = won @ BET_WEIGHTS
    # A mean of e-processes is one again, however much the two depend on each other.
    return float(np.log(np.mean(capital_of_games)))


def judge_sides(evidence: Evidence, slo: int, allowed: float, alpha: float) -> Decision:
    """As `judge_share`, where users never pause: a test of each side."""
    sizes, hits = evidence.over(slo)
    n = float(sizes.sum())
    k = float(hits.sum())
    if k > allowed * n:
        effect = evidence.effect(slo, allowed)
        log_share = log_one_sided(n / effect, k / effect, allowed)
        # A design effect that few blocks show may be far too small.
        shown_by_share = log_share >= -log(alpha) and len(sizes) >= FAIL_BLOCKS
        # A gross violation makes the design effect so large that only bets show it (decision 4).
        shown_by_bets = log_bets(sizes, hits, allowed) >= -log(BETS_ALPHA * alpha)
        return Decision.failed if shown_by_share or shown_by_bets else Decision.inconclusive
    # The few observations over the limit of a good level do not show how these cluster.
    effect = evidence.floored_effect(slo, allowed)
    is_shown = log_one_sided(n / effect, k / effect, allowed) >= -log(alpha)
    is_long = evidence.seconds * SECOND >= PASS_LIFETIMES * evidence.lifetime_ns
    return Decision.passed if is_shown and is_long else Decision.inconclusive


def progress(evidence: Evidence, slos: Sequence[Slo], alpha: float, wants: Decision) -> float:
    """The part that was seen of the evidence by which a level passes, or fails; 1: all of it."""
    needed = -log(alpha / len(slos))
    parts = []
    for i, slo in enumerate(slos):
        sizes, hits = evidence.over(i)
        n = float(sizes.sum())
        k = float(hits.sum())
        is_over = k > slo.allowed * n
        if not n or is_over != (wants == Decision.failed):  # it leans to the other side
            parts.append(0.0)
            continue
        effect = evidence.effect(i, slo.allowed)
        if not is_over:
            effect = evidence.floored_effect(i, slo.allowed)
        parts.append(log_one_sided(n / effect, k / effect, slo.allowed) / needed)
    # One SLO that is missed is enough, and all must be met.
    return max(parts) if wants == Decision.failed else min(parts)


def too_many_errors(evidence: Evidence, max_errors: float, alpha: float) -> bool:
    """Whether more requests fail than allowed, at error rate alpha."""
    ended = evidence.ended.sum()
    errors = evidence.errors.sum()
    effect = design_effect(evidence.ended, evidence.errors)
    return judge_share(ended, errors, max_errors, alpha, effect) == Decision.failed


def judge(
    evidence: Evidence, slos: Sequence[Slo], alpha: float, max_errors: float = 0.01
) -> Judgement:
    """Judge all SLOs of a level and its error rate. `alpha`: this level's part of the run's."""
    if too_many_errors(evidence, max_errors, alpha):
        reason = f"{evidence.errors.sum():.0f} of {evidence.ended.sum():.0f} requests failed"
        return Judgement(Decision.failed, reason, leans_to_fail=True)
    if evidence.unstable:  # its latencies are a matter of how long it is held
        return Judgement(Decision.failed, evidence.unstable, leans_to_fail=True)
    decisions = set()
    leans_to_fail = False
    worst_reason = ""
    worst_ratio = -1.0  # of the share over the limit to the share allowed
    slo_alpha = alpha / max(len(slos), 1)
    for i, slo in enumerate(slos):
        sizes, hits = evidence.over(i)
        n = sizes.sum()
        k = hits.sum()
        if evidence.plain and n and 0 < slo.allowed < 1:
            decision = judge_sides(evidence, i, slo.allowed, slo_alpha)
        else:
            effect = evidence.effect(i, slo.allowed)
            decision = judge_share(n, k, slo.allowed, slo_alpha, effect)
        decisions.add(decision)
        leans_to_fail |= bool(n and k / n > slo.allowed)
        ratio = k / n / slo.allowed if n else 0.0
        if ratio > worst_ratio:
            worst_ratio = ratio
            worst_reason = f"{k:.0f} of {n:.0f} {slo.beyond} {slo}"
    return Judgement(all_of(decisions), worst_reason, leans_to_fail)


def all_of(decisions: AbstractSet[Decision]) -> Decision:
    """That of several SLOs: one that fails is enough, and all must pass."""
    if Decision.failed in decisions:
        return Decision.failed
    return Decision.passed if decisions == {Decision.passed} else Decision.inconclusive
