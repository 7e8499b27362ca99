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

from harness.measure.metrics import METRICS, failed, lost_gaps
from harness.measure.stats import MOST_BLOCKS
from harness.measure.walk import inside, walk
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.recorded import Recorded
    from harness.measure.slo import Slo
    from harness.measure.states import Purpose
    from harness.measure.table import RecordTable
    from harness.measure.walk import Piece

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

HALF: Final = 240  # bins on each side of the limit
SPAN: Final = float(np.log(20))  # the grid reaches from 1/20 to 20 times the limit
BINS: Final = 2 * HALF + 2  # and one catch-all at each end
FEWEST_BLOCKS: Final = 4


@dataclass(frozen=True, slots=True)
class Window:
    """A step's window: requests *sent* in it, gaps that *ended* in it."""

    index: int
    users: int
    purpose: Purpose
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
    place = np.maximum(ratio, 1e-12)
    np.log(place, out=place)
    place *= HALF / SPAN
    np.clip(place, -HALF, HALF + 1, out=place)
    place -= 1e-9
    np.ceil(place, out=place)
    place += HALF
    return place.astype(np.int64)


def lifetime_ns(table: RecordTable) -> float:
    """Mean time under way: the sum over all of the time seen, over the number that ended."""
    if not len(table):
        return 0.0
    seen = (table.done_ns - table.sent_ns).clip(min=0).sum()
    return float(seen / max(int((~table.is_open).sum()), 1))


class Judged:
    """What evidence needs of each token of a window: a Walker, fitted to the requests `known`."""

    def __init__(self, known: RecordTable, window: Window, slos: Sequence[Slo]) -> None:
        """`known`: the requests as they were known at the window's end."""
        self.start_ns, self.end_ns = window.settled_ns, window.end_ns
        self.life_ns = lifetime_ns(known)
        self.length_ns = max(self.end_ns - self.start_ns, 1)
        self.blocks = int(
            np.clip(self.length_ns / max(self.life_ns, 1), FEWEST_BLOCKS, MOST_BLOCKS)
        )
        self.block_ns = self.length_ns // self.blocks + 1  # the last instant lies in the last one
        self.tokens = np.zeros(self.blocks)
        self.grids = {slo: np.zeros((self.blocks, BINS)) for slo in slos if slo.metric == "itl"}
        rows, owed = lost_gaps(known)
        ends = known.done_ns[rows]
        here = (ends >= self.start_ns) & (ends <= self.end_ns)
        for grid in self.grids.values():
            np.add.at(grid[:, -1], self.block_of(ends[here]), owed[here])

    def block_of(self, at_ns: Ints) -> Ints:
        """The time block of each instant of the window."""
        return np.asarray((at_ns - self.start_ns) // self.block_ns)

    def see(self, piece: Piece) -> None:
        """Count a piece's gaps by block and ratio, and its tokens by block."""
        chunk = piece.chunk
        here = inside(chunk.at_ns, self.start_ns, self.end_ns)
        came = self.block_of(chunk.at_ns[here])
        self.tokens += np.bincount(came, weights=chunk.tokens[here], minlength=self.blocks)
        if not self.grids:
            return
        here = inside(piece.end_ns, self.start_ns, self.end_ns)
        row, gaps = self.block_of(piece.end_ns[here]) * BINS, piece.gap_ns[here].astype(float)
        for slo, grid in self.grids.items():
            cells = row + bin_of(gaps / slo.limit_ns)
            np.add(grid, np.bincount(cells, minlength=grid.size).reshape(grid.shape), out=grid)


def gather(
    recorded: Recorded, window: Window, slos: Sequence[Slo], judged: Judged | None = None
) -> Evidence:
    """Counts of what was known at the window's end (`RecordTable.until`, `Known`).

    Requests sent after the first one whose latency is still unknown are left out, whatever became
    of them, so that no quick one is counted before a slow one. `judged`: where the tokens were
    counted already.
    """
    table = recorded.table
    if judged is None:
        judged = Judged(table, window, slos)
        walk(recorded, [judged])
    count, block_of = judged.blocks, judged.block_of
    sent_in = (table.sent_ns >= window.settled_ns) & (table.sent_ns <= window.end_ns)
    grids = []
    for slo in slos:
        if slo in judged.grids:
            grids.append(judged.grids[slo])
            continue
        values, at = _observed(table, window, slo, sent_in)
        cell = block_of(at) * BINS + bin_of(values / slo.limit_ns)
        grids.append(np.bincount(cell, minlength=count * BINS).astype(float).reshape(count, BINS))
    end_in = (
        ~table.is_open & (table.done_ns >= window.settled_ns) & (table.done_ns <= window.end_ns)
    )
    block = block_of(table.done_ns[end_in])
    bad = failed(table)[end_in]
    return Evidence(
        window,
        judged.life_ns,
        judged.length_ns / SECOND,
        tuple(grids),
        np.bincount(block, minlength=count).astype(float),
        np.bincount(block, weights=bad, minlength=count).astype(float),
        judged.tokens,
    )


def _observed(
    table: RecordTable, window: Window, slo: Slo, sent_in: NDArray[np.bool_]
) -> tuple[Floats, Ints]:
    """(values in ns, instants that place them in a block) of a latency that requests have one of.

    Nothing where the metric is not a latency.
    """
    observe = METRICS[slo.metric].observe
    if observe is None or not len(table):
        return np.zeros(0), np.zeros(0, np.int64)
    seen = observe(table)
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
