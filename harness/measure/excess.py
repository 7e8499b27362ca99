"""The criterion of the fit: how far a level's share over a limit is from the share allowed.

In log-odds: 0 is exactly the allowed share, above it the level breaks an SLO or its error rate. A
share uses every request of a level, a quantile only those around it: over 418 simulated searches
the knee's error (root mean square, in units of 5 %) fell from 0.59 to 0.52 by this choice alone
(decision 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.judge import too_many_errors
from harness.measure.stats import design_effect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.evidence import Evidence
    from harness.measure.slo import Slo

    Floats = NDArray[np.float64]

PRIOR: Final = 1.0  # observations at the allowed share added, so that a clean level has log-odds
SURE: Final = 0.05 / 8  # error rate at which failures are too many: the default plan's for a level
NONE_ALLOWED: Final = 1e-6  # stands for `--max-errors 0%`, whose log-odds are not finite


@dataclass(frozen=True, slots=True)
class Criterion:
    """One limit at one level: observations and those against it, per block; the share allowed."""

    sizes: Floats
    hits: Floats
    allowed: float

    def excess(self, weights: Floats) -> tuple[Floats, float]:
        """(log-odds less those allowed, per row of weights; the first row's information).

        Correlated observations count as n / design effect. A row without observations is NaN.
        """
        effect = design_effect(self.sizes, self.hits)
        n, k = weights @ self.sizes / effect, weights @ self.hits / effect
        share = (k + PRIOR * self.allowed) / (n + PRIOR)
        value = np.where(n > 0, log_odds(share) - log_odds(self.allowed), np.nan)
        return value, float(n[0] * share[0] * (1 - share[0]))


def criteria(evidence: Evidence, slos: Sequence[Slo], max_errors: float) -> list[Criterion]:
    """What a level can be compared by: the SLOs that it has observations of, and its failures.

    Failures count where they are surely too many. One stray failure among the few requests of a low
    level is a share far above 1 %: fitted as it stands it moved knees (2 of 60 with one request in
    300 failing), and a level without any would hide what its many gaps show.
    """
    found = [Criterion(*evidence.over(i), slo.allowed) for i, slo in enumerate(slos)]
    if too_many_errors(evidence, max_errors, SURE):
        allowed = max(max_errors, NONE_ALLOWED)
        found.append(Criterion(evidence.ended, evidence.errors, allowed))
    return [one for one in found if one.sizes.any()]


def log_odds(share: Floats | float) -> Floats:
    """log(p / (1 - p))."""
    return np.asarray(np.log(share) - np.log1p(-np.asarray(share)), np.float64)


def excess(
    evidence: Evidence, slos: Sequence[Slo], max_errors: float, weights: Floats | None = None
) -> tuple[Floats, float]:
    """(log-odds of the worst criterion's share less those allowed, its information n p (1 - p)).

    `weights` (replicates, blocks) gives one figure per bootstrap replicate, else one for the data;
    NaN without observations. A replicate that lacks a criterion's observations takes the data's.
    """
    data = np.ones((1, evidence.blocks))
    rows = data if weights is None else np.vstack([data, weights])
    each = [criterion.excess(rows) for criterion in criteria(evidence, slos, max_errors)]
    if not each:
        return np.full(len(rows if weights is None else weights), np.nan), 0.0
    values = np.array([np.where(np.isnan(value), value[0], value) for value, _ in each])
    worst = np.asarray(values.max(axis=0), np.float64)
    return (worst if weights is None else worst[1:]), each[int(np.argmax(values[:, 0]))][1]
