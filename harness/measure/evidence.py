"""What one step says about the SLOs, small enough to keep: counts by time block and by ratio.

For every SLO the observations of a step are divided by the limit and counted in a fixed grid of
ratios (1.25 % apart, the limit itself is an edge), one row per block of time. All SLOs share the
blocks, so that they are resampled together. From these counts come the share over the limit, its
design effect, the quantile's ratio to the limit, and each bootstrap replicate of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.metrics import METRICS, failed
from harness.measure.table import OPEN
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.slo import Slo
    from harness.measure.table import RecordTable

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

HALF: Final = 240  # bins on each side of the limit
SPAN: Final = float(np.log(20))  # the grid reaches from 1/20 to 20 times the limit
BINS: Final = 2 * HALF + 2  # and one catch-all at each end
MOST_BLOCKS: Final = 24
FEWEST_BLOCKS: Final = 4


@dataclass(frozen=True, slots=True)
class Window:
    """A step's window: requests *sent* in it, gaps that *ended* in it."""

    index: int
    users: int
    purpose: str  # up, bisect, repeat, down, hold
    chosen_ns: int  # the search asked for this level
    start_ns: int  # its users were all there and busy
    settled_ns: int  # warm-up cut
    end_ns: int  # horizon of what was known when the step was judged
    judged_ns: int  # and when that was


@dataclass(frozen=True, slots=True)
class Evidence:
    """Counts per SLO: `grids[slo]` is (blocks, BINS); `ended`, `errors`, `tokens` are per block."""

    window: Window
    lifetime_ns: float  # mean time a request was under way (censored ones at their age)
    seconds: float  # measured in all
    grids: tuple[Floats, ...]
    ended: Floats
    errors: Floats
    tokens: Floats  # that arrived, per block

    @property
    def blocks(self) -> int:
        """Number of time blocks."""
        return len(self.ended)

    def over(self, slo: int) -> tuple[Floats, Floats]:
        """(observations, those over the limit) per block."""
        grid = self.grids[slo]
        return grid.sum(axis=1), grid[:, HALF + 1 :].sum(axis=1)


def bin_of(ratio: Floats) -> Ints:
    """Bin of value / limit; bin HALF ends exactly at the limit (a ratio of 1 is within it)."""
    with np.errstate(divide="ignore"):
        place = np.log(np.maximum(ratio, 1e-12)) * (HALF / SPAN)
    place = np.ceil(np.clip(place, -HALF - 1, HALF + 1) - 1e-9)
    return np.asarray(place + HALF, np.int64).clip(0, BINS - 1)


def lifetime_ns(table: RecordTable) -> float:
    """Mean time under way: the sum over all of the time seen, over the number that ended."""
    if not len(table):
        return 0.0
    seen = (table.done_ns - table.sent_ns).clip(min=0).sum()
    return float(seen / max(int((table.outcome != OPEN).sum()), 1))


def gather(table: RecordTable, window: Window, slos: Sequence[Slo]) -> Evidence:
    """Counts of a table that was cut at the window's end (`RecordTable.until`).

    Requests sent after the first one whose latency is still unknown are left out, whatever became
    of them, so that no quick one is counted before a slow one.
    """
    life = lifetime_ns(table)
    length = max(window.end_ns - window.settled_ns, 1)
    count = int(np.clip(length / max(life, 1), FEWEST_BLOCKS, MOST_BLOCKS))
    block_ns = length // count + 1  # the window's last instant lies in the last block
    sent_in = (table.sent_ns >= window.settled_ns) & (table.sent_ns <= window.end_ns)
    grids = []
    for slo in slos:
        seen = _observed(table, window, slo, sent_in)
        if seen is None:
            grids.append(np.zeros((count, BINS)))
            continue
        values, at = seen
        cell = ((at - window.settled_ns) // block_ns) * BINS + bin_of(values / slo.limit_ns)
        grids.append(np.bincount(cell, minlength=count * BINS).astype(float).reshape(count, BINS))
    end_in = (
        (table.outcome != OPEN)
        & (table.done_ns >= window.settled_ns)
        & (table.done_ns <= window.end_ns)
    )
    block = (table.done_ns[end_in] - window.settled_ns) // block_ns
    bad = failed(table)[end_in]
    came = (table.at_ns >= window.settled_ns) & (table.at_ns <= window.end_ns)
    came_block = (table.at_ns[came] - window.settled_ns) // block_ns
    return Evidence(
        window,
        life,
        length / SECOND,
        tuple(grids),
        np.bincount(block, minlength=count).astype(float),
        np.bincount(block, weights=bad, minlength=count).astype(float),
        np.bincount(came_block, weights=table.tokens[came], minlength=count).astype(float),
    )


def _observed(
    table: RecordTable, window: Window, slo: Slo, sent_in: NDArray[np.bool_]
) -> tuple[Floats, Ints] | None:
    """(values in ns, instants that place them in a block) of one SLO's metric in the window."""
    observe = METRICS[slo.metric].observe
    if observe is None or not len(table):
        return None
    seen = observe(table)
    if slo.metric == "itl":
        keep = (seen.at_ns >= window.settled_ns) & (seen.at_ns <= window.end_ns)
        return seen.ns[keep], seen.at_ns[keep]
    sent = table.sent_ns[seen.row]
    unknown = np.isinf(seen.hi_ns) & (seen.lo_ns <= slo.limit_ns)  # open, and not over it yet
    ripe = sent_in[seen.row] & (sent < sent[unknown].min(initial=window.end_ns + 1))
    return seen.ns[ripe], table.sent_ns[seen.row][ripe]


def pool(evidences: Sequence[Evidence]) -> Evidence:
    """All steps held at one level as one: their blocks side by side (window: the last one's)."""
    last = evidences[-1]
    if len(evidences) == 1:
        return last
    return Evidence(
        last.window,
        float(np.mean([e.lifetime_ns for e in evidences])),
        sum(e.seconds for e in evidences),
        tuple(np.concatenate(grids) for grids in zip(*(e.grids for e in evidences), strict=True)),
        np.concatenate([e.ended for e in evidences]),
        np.concatenate([e.errors for e in evidences]),
        np.concatenate([e.tokens for e in evidences]),
    )


def ratio_quantiles(mass: Floats, q: float) -> Floats:
    """Log of the q-quantile's ratio to the limit, for each row of (rows, BINS) counts.

    Linear within a bin; NaN for a row without observations. Clipped to the grid, [-3, 3].
    """
    total = np.cumsum(mass, axis=1)
    want = q * total[:, -1]
    hit = np.argmax(total >= want[:, None], axis=1)
    rows = np.arange(len(mass))
    inside = mass[rows, hit]
    before = total[rows, hit] - inside
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(inside > 0, (want - before) / inside, 1.0)
    place = (hit - HALF - 1 + part) * (SPAN / HALF)
    return np.where(total[:, -1] > 0, np.clip(place, -SPAN, SPAN), np.nan)


def worst_ratio(evidence: Evidence, slos: Sequence[Slo], weights: Floats | None = None) -> Floats:
    """Max over the SLOs of log(quantile / limit): above 0, the level breaks an SLO.

    `weights` (replicates, blocks) gives one figure per bootstrap replicate, else one for the data.
    """
    if weights is None:
        weights = np.ones((1, evidence.blocks))
    each = [
        ratio_quantiles(weights @ grid, slo.q)
        for grid, slo in zip(evidence.grids, slos, strict=True)
    ]
    known = np.where(np.isnan(each), -np.inf, each)
    worst = np.asarray(known.max(axis=0), np.float64)
    return np.where(np.isinf(worst), np.nan, worst)
