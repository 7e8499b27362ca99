"""The criterion of the fit: how far a level's share over a limit is from the share allowed.

It is measured in log-odds: 0 is exactly the allowed share, above 0 the level breaks an SLO or its
error rate. A share uses every request of a level, a quantile only those around it: in 418 simulated
searches the knee's error (root mean square, in units of 5%) fell from 0.59 to 0.52 by this choice
alone (decision 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.metrics.statistics import design_effect
from harness.search.judge import too_many_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.metrics.evidence import Evidence
    from harness.metrics.slo import Slo

    Floats = NDArray[np.float64]

# Observations at the allowed share added, so that a clean level has log-odds.
PRIOR_OBSERVATIONS: Final = 1.0
# Alpha at which failures are certainly too many: that of one level in the default plan.
ERROR_ALPHA: Final = 0.05 / 8
UNSTABLE_MARGIN: Final = 1.0  # an unstable level is above the knee, whatever it shows so far
MIN_ALLOWED_SHARE: Final = 1e-6  # stands for `--max-errors 0%`, whose log-odds are not finite


@dataclass(frozen=True, slots=True)
class Criterion:
    """One limit at one level: observations and violations per block, and the share allowed."""

    sizes: Floats
    hits: Floats
    allowed: float
    effect: float  # design effect

    def margin(self, weights: Floats) -> tuple[Floats, float]:
        """(log-odds minus the allowed ones, per row of weights; the information of the first row).

        Correlated observations count as n / design effect. A row without observations is NaN.
        """
        n = weights @ self.sizes / self.effect
        k = weights @ self.hits / self.effect
        share = (k + PRIOR_OBSERVATIONS * self.allowed) / (n + PRIOR_OBSERVATIONS)
        distance = log_odds(share) - log_odds(self.allowed)
        value = np.where(n > 0, distance, np.nan)
        information = float(n[0] * share[0] * (1 - share[0]))
        return value, information


def criteria(evidence: Evidence, slos: Sequence[Slo], max_errors: float) -> list[Criterion]:
    """The limits that a level has observations of: its SLOs, and its error rate.

    Failures count only if they are certainly too many. A single failure among the few requests of a
    low level is a share far above 1%: used as it is, it moved knees (2 of 60 if one request in 300
    failed). And at a level without failures this criterion would hide what its many gaps show.
    """
    limits = []
    for i, slo in enumerate(slos):
        sizes, hits = evidence.over(i)
        effect = evidence.effect(i, slo.allowed)
        limits.append(Criterion(sizes, hits, slo.allowed, effect))
    if too_many_errors(evidence, max_errors, ERROR_ALPHA):
        allowed = max(max_errors, MIN_ALLOWED_SHARE)
        effect = design_effect(evidence.ended, evidence.errors)
        limits.append(Criterion(evidence.ended, evidence.errors, allowed, effect))
    return [limit for limit in limits if limit.sizes.any()]


def log_odds(share: Floats | float) -> Floats:
    """log(p / (1 - p))."""
    return np.asarray(np.log(share) - np.log1p(-np.asarray(share)), np.float64)


def logit_margin(
    evidence: Evidence, slos: Sequence[Slo], max_errors: float, weights: Floats | None = None
) -> tuple[Floats, float]:
    """(log-odds of the worst criterion's share minus the allowed ones, information n p (1 - p)).

    With `weights`, shape (replicates, blocks): one value per bootstrap replicate. NaN without
    observations; a replicate without observations of a criterion takes the value of the data.
    """
    limits = criteria(evidence, slos, max_errors)
    if not limits:
        replicates = 1 if weights is None else len(weights)
        return np.full(replicates, np.nan), 0.0
    # The first row is the data, which also says which criterion is the worst.
    rows = np.ones((1, evidence.blocks))
    if weights is not None:
        rows = np.vstack([rows, weights])
    values = []
    information = []
    for limit in limits:
        margins, of_data = limit.margin(rows)
        values.append(np.where(np.isnan(margins), margins[0], margins))
        information.append(of_data)
    by_limit = np.array(values)
    worst = np.asarray(by_limit.max(axis=0), np.float64)
    if evidence.unstable:
        worst = worst.clip(min=UNSTABLE_MARGIN)
    worst_of_data = int(np.argmax(by_limit[:, 0]))
    return worst if weights is None else worst[1:], information[worst_of_data]
