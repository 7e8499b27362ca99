"""What one hold of a level shows about the SLOs, in counts by time block and by ratio to the limit.

For every SLO the observations are divided by the limit and counted in a fixed grid of ratios (1.25%
apart, the limit itself is an edge), one row per block of time. All SLOs share the blocks, so that
they are resampled together. From these counts come the share over the limit, its design effect, the
quantile's ratio to the limit, and each bootstrap replicate of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.metrics.ledger import mean_in_flight
from harness.metrics.metrics import GAPS, SLO_METRICS, failed_requests, lost_gaps
from harness.metrics.scan import scan, within_window
from harness.metrics.statistics import (
    MAX_BLOCKS,
    design_effect,
    design_effects,
    sum_groups,
    tail_size,
)
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.core.states import Purpose
    from harness.metrics.record_source import RecordSource
    from harness.metrics.scan import EventChunk
    from harness.metrics.slo import Slo
    from harness.records.record_table import RecordTable

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

BINS_PER_SIDE: Final = 240  # bins on each side of the limit
LOG_SPAN: Final = float(np.log(20))  # the grid reaches from 1/20 to 20 times the limit
RATIO_BINS: Final = 2 * BINS_PER_SIDE + 2  # one more at each end for everything beyond
MIN_BLOCKS: Final = 4
FLOOR_POWER: Final = 0.5  # of the design effect of the highest observations
# An open loop above capacity: requests in flight grow, in a straight line through so many blocks,
# by a slope this many standard errors above 0, which repeated looks at a stable level do not find.
BACKLOG_BLOCKS: Final = 12
BACKLOG_ERRORS: Final = 6.0
MIN_BACKLOG_SHARE: Final = 0.02  # of the rate: slower growth is not worth a name
MIN_BACKLOG: Final = 5.0  # requests more at the end than at the start


@dataclass(frozen=True, slots=True)
class Window:
    """The window of one hold: it has the requests *sent* in it and the gaps that *ended* in it."""

    index: int
    users: int  # of a rate: in steps of `SearchPlan.rate_step_per_s`
    purpose: Purpose
    chosen_ns: int  # when the search chose this level
    start_ns: int  # when all its users were busy
    settled_ns: int  # when the warm-up ended
    end_ns: int  # horizon of what was known when the level was judged
    judged_ns: int  # when it was judged
    rate_per_s: float = 0.0  # requests per second by schedule; 0: a closed loop


@dataclass(frozen=True, slots=True)
class Evidence:
    """Counts per SLO: `grids[slo]` is (blocks, BINS); `ended`, `errors`, `tokens` are per block."""

    window: Window
    lifetime_ns: float  # mean time that a request was in flight (open ones count their age)
    seconds: float  # total measured time
    grids: tuple[Floats, ...]
    ended: Floats
    errors: Floats
    tokens: Floats  # output tokens that arrived, per block
    unstable: str = ""  # of an open loop: how its backlog grows, if that is shown
    lasting: bool = False  # neighbors in time stay alike for many lifetimes: a rate, or sessions
    plain: bool = False  # users never pause, and each request is independent of the one before

    @property
    def blocks(self) -> int:
        """Number of time blocks."""
        return len(self.ended)

    def over(self, slo: int) -> tuple[Floats, Floats]:
        """(observations, observations over the limit) per block."""
        grid = self.grids[slo]
        return grid.sum(axis=1), grid[:, BINS_PER_SIDE + 1 :].sum(axis=1)

    def effect(self, slo: int, allowed: float) -> float:
        """Design effect of the observations over the limit.

        Independent requests of a closed loop forget within a lifetime. The queue of an open loop
        and the prompts of sessions do not, and a calm while without a hit does not show how hits
        cluster. There, blocks are also joined by two and by four, and the highest observations
        count as hits do: as many as twice the share allowed.
        """
        sizes, hits = self.over(slo)
        if not self.lasting:
            return design_effect(sizes, hits)
        either = np.array([hits, self._highest(slo, allowed)])
        joined = (n for n in (self.blocks, self.blocks // 2, self.blocks // 4) if n >= MIN_BLOCKS)
        effects = (design_effects(sum_groups(sizes, n), sum_groups(either, n)) for n in joined)
        return float(max((each.max() for each in effects), default=1.0))

    def floored_effect(self, slo: int, allowed: float) -> float:
        """The same, for a test that few are over: at least the root of that of the highest ones."""
        sizes, hits = self.over(slo)
        highest = design_effect(sizes, self._highest(slo, allowed))
        return max(design_effect(sizes, hits), float(highest**FLOOR_POWER))

    def _highest(self, slo: int, allowed: float) -> Floats:
        """How many of the highest observations each block has: twice the share allowed."""
        downward = self.grids[slo][:, ::-1].cumsum(axis=1)
        upto = downward.sum(axis=0)
        edge = int(np.searchsorted(upto, tail_size(int(upto[-1]), 1 - 2 * allowed)))
        return np.asarray(downward[:, edge])


def ratio_bin(ratio: Floats) -> Ints:
    """Bin of value / limit; bin HALF ends exactly at the limit (a ratio of 1 is within it)."""
    # In place, as it runs over every gap. 1e-9 keeps a ratio of exactly 1 in bin HALF.
    place = np.maximum(ratio, 1e-12)
    np.log(place, out=place)
    place *= BINS_PER_SIDE / LOG_SPAN
    np.clip(place, -BINS_PER_SIDE, BINS_PER_SIDE + 1, out=place)
    place -= 1e-9
    np.ceil(place, out=place)
    place += BINS_PER_SIDE
    return place.astype(np.int64)


def lifetime_ns(table: RecordTable) -> float:
    """Mean time in flight: the total time observed over the number of requests that ended."""
    if not len(table):
        return 0.0
    seen = (table.done_ns - table.sent_ns).clip(min=0).sum()
    return float(seen / max(int((~table.is_open).sum()), 1))


def concurrency(table: RecordTable, window: Window) -> float:
    """Requests in flight: the users of a closed loop, the mean of an open one; above 0."""
    if not window.rate_per_s:
        return max(window.users, 1)
    inside = (table.sent_ns >= window.settled_ns) & (table.sent_ns <= window.end_ns)
    return max(window.rate_per_s * lifetime_ns(table.select(inside)) / SECOND, 1e-3)


def backlog_growth(table: RecordTable, window: Window) -> tuple[float, str]:
    """(requests in flight more each second, a sentence if this shows that a rate is unstable).

    The line's standard error counts neighboring blocks as fewer the more alike their residuals are.
    """
    edges = np.linspace(window.settled_ns, window.end_ns, BACKLOG_BLOCKS + 1)
    mean = np.array([mean_in_flight(table, int(a), int(b)) for a, b in pairwise(edges)])
    seconds = max(window.end_ns - window.settled_ns, 1) / SECOND
    x = (np.arange(BACKLOG_BLOCKS) + 0.5) / BACKLOG_BLOCKS * seconds
    x -= x.mean()
    slope = float(x @ mean / (x @ x))
    left = mean - mean.mean() - slope * x
    alike = float(np.clip((left[1:] @ left[:-1]) / max(left @ left, 1e-9), 0, 0.8))
    error = np.sqrt(left @ left / (BACKLOG_BLOCKS - 2) / (x @ x) * (1 + alike) / (1 - alike))
    least = max(MIN_BACKLOG_SHARE * window.rate_per_s, MIN_BACKLOG / seconds)
    shown = window.rate_per_s and slope > max(least, BACKLOG_ERRORS * float(error))
    more = f"{slope:.3g} more requests in flight each second at {window.rate_per_s:g} requests/s"
    return slope, f"unstable: {more}" if shown else ""


class EvidenceCounter:
    """An EventVisitor: counts the tokens of a window for its evidence, in blocks of `known`."""

    def __init__(self, known: RecordTable, window: Window, slos: Sequence[Slo]) -> None:
        """`known`: the requests as known at the window's end."""
        self.start_ns, self.end_ns = window.settled_ns, window.end_ns
        self.life_ns = lifetime_ns(known)
        self.length_ns = max(self.end_ns - self.start_ns, 1)
        self.blocks = int(np.clip(self.length_ns / max(self.life_ns, 1), MIN_BLOCKS, MAX_BLOCKS))
        self.block_ns = self.length_ns // self.blocks + 1  # the last instant lies in the last one
        self.tokens = np.zeros(self.blocks)
        self.grids = {
            slo: np.zeros((self.blocks, RATIO_BINS)) for slo in slos if slo.metric in GAPS
        }
        rows, owed = lost_gaps(known)
        ends = known.done_ns[rows]
        here = (ends >= self.start_ns) & (ends <= self.end_ns)
        for grid in self.grids.values():
            np.add.at(grid[:, -1], self.block_of(ends[here]), owed[here])

    def block_of(self, at_ns: Ints) -> Ints:
        """The time block of each instant in the window."""
        return np.asarray((at_ns - self.start_ns) // self.block_ns)

    def add(self, piece: EventChunk) -> None:
        """Count a chunk's gaps by block and ratio, and its tokens by block."""
        chunk = piece.chunk
        here = within_window(chunk.at_ns, self.start_ns, self.end_ns)
        came = self.block_of(chunk.at_ns[here])
        self.tokens += np.bincount(came, weights=chunk.tokens[here], minlength=self.blocks)
        for slo, grid in self.grids.items():
            gaps = piece.of(slo.metric)
            here = within_window(gaps.end_ns, self.start_ns, self.end_ns)
            row = self.block_of(gaps.end_ns[here]) * RATIO_BINS
            cells = row + ratio_bin(gaps.gap_ns[here] / slo.limit_ns)
            np.add(grid, np.bincount(cells, minlength=grid.size).reshape(grid.shape), out=grid)


def gather_evidence(
    recorded: RecordSource,
    window: Window,
    slos: Sequence[Slo],
    judged: EvidenceCounter | None = None,
) -> Evidence:
    """The evidence of what was known at the window's end (`RecordTable.until`, `Known`).

    Requests sent after the first one whose latency is still unknown are left out, whatever their
    outcome, so that fast requests are not counted before slow ones. `judged`: the tokens, if they
    have been counted already.
    """
    table = recorded.table
    if judged is None:
        judged = EvidenceCounter(table, window, slos)
        scan(recorded, [judged])
    count, block_of = judged.blocks, judged.block_of
    sent_in = (table.sent_ns >= window.settled_ns) & (table.sent_ns <= window.end_ns)
    grids = []
    for slo in slos:
        if slo in judged.grids:
            grids.append(judged.grids[slo])
            continue
        values, at = _observed(table, window, slo, sent_in)
        cell = block_of(at) * RATIO_BINS + ratio_bin(values / slo.limit_ns)
        grids.append(
            np.bincount(cell, minlength=count * RATIO_BINS).astype(float).reshape(count, RATIO_BINS)
        )
    end_in = (
        ~table.is_open & (table.done_ns >= window.settled_ns) & (table.done_ns <= window.end_ns)
    )
    block = block_of(table.done_ns[end_in])
    bad = failed_requests(table)[end_in]
    return Evidence(
        window,
        judged.life_ns,
        judged.length_ns / SECOND,
        tuple(grids),
        np.bincount(block, minlength=count).astype(float),
        np.bincount(block, weights=bad, minlength=count).astype(float),
        judged.tokens,
        backlog_growth(table, window)[1] if window.rate_per_s else "",
        lasting := bool(window.rate_per_s or (table.session >= 0).any()),
        not lasting and not (table.think_ns > 0).any(),
    )


def _observed(
    table: RecordTable, window: Window, slo: Slo, sent_in: NDArray[np.bool_]
) -> tuple[Floats, Ints]:
    """(values in ns, send times that place them in a block) of a latency per request."""
    if not len(table):
        return np.zeros(0), np.zeros(0, np.int64)
    seen = SLO_METRICS[slo.metric].observe(table)
    sent = table.sent_ns[seen.row]
    # Unknown: still open and not over the limit yet. Everything sent after the first such request
    # waits for it.
    unknown = np.isinf(seen.hi_ns) & (seen.lo_ns <= slo.limit_ns)
    ripe = sent_in[seen.row] & (sent < sent[unknown].min(initial=window.end_ns + 1))
    return seen.ns[ripe], table.sent_ns[seen.row][ripe]


def pool_evidence(evidences: Sequence[Evidence]) -> Evidence:
    """All holds of one level as one: their blocks side by side, with the last one's window."""
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
        next((e.unstable for e in evidences if e.unstable), ""),
        last.lasting,
        all(e.plain for e in evidences),
    )


def ratio_quantiles(mass: Floats, q: float) -> Floats:
    """Log of the q-quantile's ratio to the limit, for each row of `mass`, shape (rows, BINS).

    Linear within a bin, clipped to the grid, [-3, 3]. NaN for a row without observations.
    """
    total = np.cumsum(mass, axis=1)
    want = q * total[:, -1]
    hit = np.argmax(total >= want[:, None], axis=1)
    rows = np.arange(len(mass))
    within_window = mass[rows, hit]
    before = total[rows, hit] - within_window
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(within_window > 0, (want - before) / within_window, 1.0)
    place = (hit - BINS_PER_SIDE - 1 + part) * (LOG_SPAN / BINS_PER_SIDE)
    return np.where(total[:, -1] > 0, np.clip(place, -LOG_SPAN, LOG_SPAN), np.nan)


def worst_ratio(evidence: Evidence, slos: Sequence[Slo], weights: Floats | None = None) -> Floats:
    """Max over the SLOs of log(quantile / limit): above 0, the level breaks an SLO.

    With `weights`, shape (replicates, blocks): one value per bootstrap replicate.
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
