"""What one hold of a level shows about the SLOs, in counts by time block and by ratio to the limit.

For every SLO the observations are divided by the limit and counted in a fixed grid of ratios (1.25%
apart, the limit itself is an edge), one row per block of time. All SLOs share the blocks, so that
they are resampled together. From these counts come the share over the limit, its design effect, the
quantile's ratio to the limit, and each bootstrap replicate of it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.core.arrays import between
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

    from harness.core.load import Load
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
# by a slope this many standard errors above 0, which repeated looks at a stable level do not find:
# in simulated time at none of 20 seeds at 90% of capacity, and at 16 of 20 at 110% (decision 18).
BACKLOG_BLOCKS: Final = 12
BACKLOG_ERRORS: Final = 6.0
MIN_BACKLOG_SHARE: Final = 0.02  # of the rate: slower growth is not worth a name
MIN_BACKLOG: Final = 5.0  # requests more at the end than at the start


@dataclass(frozen=True, slots=True)
class Window:
    """The window of one hold: it has the requests *sent* in it and the gaps that *ended* in it."""

    index: int
    load: Load
    purpose: Purpose
    chosen_ns: int  # when the search chose this level
    start_ns: int  # when all its users were busy
    settled_ns: int  # when the warm-up ended
    end_ns: int  # horizon of what was known when the level was judged
    judged_ns: int  # when it was judged

    def to_json(self) -> dict[str, Any]:
        """As levels.jsonl has it: the count of its load as `users`, and the rate."""
        row: dict[str, Any] = {}
        for field in fields(self):
            if field.name == "load":
                row["users"] = self.load.count
            else:
                row[field.name] = getattr(self, field.name)
        return row | {"rate_per_s": self.load.rate_per_s}


@dataclass(frozen=True, slots=True)
class Evidence:
    """Counts per block of time; `grids[slo]` has the shape (blocks, RATIO_BINS)."""

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
        over_limit = grid[:, BINS_PER_SIDE + 1 :]
        return grid.sum(axis=1), over_limit.sum(axis=1)

    def effect(self, slo: int, allowed: float) -> float:
        """Design effect of the observations over the limit.

        Independent requests of a closed loop forget within a lifetime. The queue of an open loop
        and the prompts of sessions do not, and a calm while without a hit does not show how hits
        cluster. There, blocks are also joined by two and by four, and the highest observations
        count as hits do: as many as twice the share allowed.
        """
        # At 34/s, where 13% of the waits were over a limit that allows 10%, four seconds without
        # any looked like 125 independent requests, and the level passed (decision 18).
        sizes, hits = self.over(slo)
        if not self.lasting:
            return design_effect(sizes, hits)
        either = np.array([hits, self._highest(slo, allowed)])
        largest = 1.0
        for groups in (self.blocks, self.blocks // 2, self.blocks // 4):
            if groups < MIN_BLOCKS:
                continue
            joined_sizes = sum_groups(sizes, groups)
            joined_hits = sum_groups(either, groups)
            effects = design_effects(joined_sizes, joined_hits)
            largest = max(largest, float(effects.max()))
        return largest

    def floored_effect(self, slo: int, allowed: float) -> float:
        """The same, for a test that few are over: at least the root of that of the highest ones."""
        sizes, hits = self.over(slo)
        effect = design_effect(sizes, hits)
        effect_of_highest = design_effect(sizes, self._highest(slo, allowed))
        return max(effect, float(effect_of_highest**FLOOR_POWER))

    def _highest(self, slo: int, allowed: float) -> Floats:
        """How many of the highest observations each block has: twice the share allowed."""
        # Cumulated from the highest bin down, per block; then the bin at which there are enough.
        highest_first = self.grids[slo][:, ::-1]
        downward = highest_first.cumsum(axis=1)
        in_all_blocks = downward.sum(axis=0)
        # Twice, because with those above the SLO's own quantile 8% of the levels were wrongly met
        # where requests of one lifetime resemble each other (decision 14).
        wanted = tail_size(int(in_all_blocks[-1]), 1 - 2 * allowed)
        lowest_bin = int(np.searchsorted(in_all_blocks, wanted))
        return np.asarray(downward[:, lowest_bin])


def ratio_bin(ratio: Floats) -> Ints:
    """Bin of value / limit; bin BINS_PER_SIDE ends at the limit (a ratio of 1 is within it)."""
    # In place, as it runs over every gap. 1e-9 keeps a ratio of exactly 1 in that bin.
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
    # Open requests count with their age: the longest are missing among those that have ended.
    observed_ns = (table.done_ns - table.sent_ns).clip(min=0).sum()
    ended = int((~table.is_open).sum())
    return float(observed_ns / max(ended, 1))


def concurrency(table: RecordTable, window: Window) -> float:
    """Requests in flight: the users of a closed loop, the mean of an open one; above 0."""
    load = window.load
    if not load.by_schedule:
        return max(load.users, 1)
    inside = between(table.sent_ns, window.settled_ns, window.end_ns)
    # Little's law: the rate times the mean time in flight.
    in_flight = load.rate_per_s * lifetime_ns(table.select(inside)) / SECOND
    return max(in_flight, 1e-3)


def backlog_growth(table: RecordTable, window: Window) -> tuple[float, str]:
    """(requests in flight more each second, a sentence if this shows that a rate is unstable).

    The line's standard error counts neighboring blocks as fewer the more alike their residuals are.
    """
    slope, error = _backlog_slope(table, window)
    seconds = max(window.end_ns - window.settled_ns, 1) / SECOND
    min_slope = max(MIN_BACKLOG_SHARE * window.load.rate_per_s, MIN_BACKLOG / seconds)
    if not window.load.by_schedule or not slope > max(min_slope, BACKLOG_ERRORS * error):
        return slope, ""
    more = f"{slope:.3g} more requests in flight each second at {window.load}"
    return slope, f"unstable: {more}"


def _backlog_slope(table: RecordTable, window: Window) -> tuple[float, float]:
    """(slope of the requests in flight per second, its standard error), by least squares."""
    edges_ns = np.linspace(window.settled_ns, window.end_ns, BACKLOG_BLOCKS + 1)
    means = []
    for start_ns, end_ns in pairwise(edges_ns):
        means.append(mean_in_flight(table, int(start_ns), int(end_ns)))
    in_flight = np.array(means)
    seconds = max(window.end_ns - window.settled_ns, 1) / SECOND
    middle_s = (np.arange(BACKLOG_BLOCKS) + 0.5) / BACKLOG_BLOCKS * seconds
    middle_s -= middle_s.mean()
    spread = middle_s @ middle_s
    slope = float(middle_s @ in_flight / spread)
    residuals = in_flight - in_flight.mean() - slope * middle_s
    # Independent residuals have a correlation of 0; each block counts fully then.
    squares = residuals @ residuals
    of_neighbors = residuals[1:] @ residuals[:-1]
    correlation = of_neighbors / max(squares, 1e-9)
    alike = float(np.clip(correlation, 0, 0.8))
    variance_of_independent = squares / (BACKLOG_BLOCKS - 2) / spread
    # The factor is that of a first-order autoregression. Twelve blocks estimate a correlation
    # poorly, so its cap keeps the error within three times that of independent blocks.
    variance = variance_of_independent * (1 + alike) / (1 - alike)
    return slope, float(np.sqrt(variance))


class EvidenceCounter:
    """An EventVisitor: counts the tokens of a window for its evidence, in blocks of `known`."""

    def __init__(self, known: RecordTable, window: Window, slos: Sequence[Slo]) -> None:
        """`known`: the requests as known at the window's end."""
        self.start_ns = window.settled_ns
        self.end_ns = window.end_ns
        self.life_ns = lifetime_ns(known)
        self.length_ns = max(self.end_ns - self.start_ns, 1)
        lifetimes = self.length_ns / max(self.life_ns, 1)
        self.blocks = int(np.clip(lifetimes, MIN_BLOCKS, MAX_BLOCKS))
        self.block_ns = self.length_ns // self.blocks + 1  # the last instant lies in the last one
        self.tokens = np.zeros(self.blocks)
        of_gaps = [slo for slo in slos if slo.metric in GAPS]
        self.grids = {slo: np.zeros((self.blocks, RATIO_BINS)) for slo in of_gaps}
        rows, lost = lost_gaps(known)
        failed_ns = known.done_ns[rows]
        here = between(failed_ns, self.start_ns, self.end_ns)
        block_of_lost = self.block_of(failed_ns[here])
        # infinite gaps, so in the highest bin of ratios
        for grid in self.grids.values():
            np.add.at(grid[:, -1], block_of_lost, lost[here])

    def block_of(self, at_ns: Ints) -> Ints:
        """The time block of each instant in the window."""
        return np.asarray((at_ns - self.start_ns) // self.block_ns)

    def add(self, piece: EventChunk) -> None:
        """Count a chunk's gaps by block and ratio, and its tokens by block."""
        chunk = piece.chunk
        here = within_window(chunk.at_ns, self.start_ns, self.end_ns)
        blocks = self.block_of(chunk.at_ns[here])
        tokens = chunk.tokens[here]
        self.tokens += np.bincount(blocks, weights=tokens, minlength=self.blocks)
        for slo, grid in self.grids.items():
            gaps = piece.of(slo.metric)
            here = within_window(gaps.end_ns, self.start_ns, self.end_ns)
            blocks = self.block_of(gaps.end_ns[here])
            ratios = gaps.gap_ns[here] / slo.limit_ns
            counts = _grid_of(blocks, ratios, self.blocks)
            np.add(grid, counts, out=grid)


def _grid_of(blocks: Ints, ratios: Floats, n_blocks: int) -> Ints:
    """How many observations each (block, bin of ratios) has."""
    cells = blocks * RATIO_BINS + ratio_bin(ratios)
    counts = np.bincount(cells, minlength=n_blocks * RATIO_BINS)
    return counts.reshape(n_blocks, RATIO_BINS)


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
    ended = ~table.is_open & between(table.done_ns, window.settled_ns, window.end_ns)
    end_block = judged.block_of(table.done_ns[ended])
    failed = failed_requests(table)[ended]
    n_ended = np.bincount(end_block, minlength=judged.blocks)
    n_failed = np.bincount(end_block, weights=failed, minlength=judged.blocks)
    unstable = ""
    if window.load.by_schedule:
        _, unstable = backlog_growth(table, window)
    # The queue of an open loop and the prompts of sessions outlast a request by far (decision 18).
    lasting = bool(window.load.by_schedule or (table.session >= 0).any())
    return Evidence(
        window=window,
        lifetime_ns=judged.life_ns,
        seconds=judged.length_ns / SECOND,
        grids=tuple(_grid_for(slo, table, window, judged) for slo in slos),
        ended=n_ended.astype(float),
        errors=n_failed.astype(float),
        tokens=judged.tokens,
        unstable=unstable,
        lasting=lasting,
        plain=not lasting and not (table.think_ns > 0).any(),
    )


def _grid_for(slo: Slo, table: RecordTable, window: Window, judged: EvidenceCounter) -> Floats:
    """Of gaps as they were counted, of a latency per request counted here."""
    if slo in judged.grids:
        return judged.grids[slo]
    values_ns, sent_ns = _observed(table, window, slo)
    blocks = judged.block_of(sent_ns)
    ratios = values_ns / slo.limit_ns
    return _grid_of(blocks, ratios, judged.blocks).astype(float)


def _observed(table: RecordTable, window: Window, slo: Slo) -> tuple[Floats, Ints]:
    """(values in ns, send times that place them in a block) of a latency per request."""
    if not len(table):
        return np.zeros(0), np.zeros(0, np.int64)
    seen = SLO_METRICS[slo.metric].observe(table)
    sent_ns = table.sent_ns[seen.row]
    # Unknown: still open and not over the limit yet. Everything sent after the first such request
    # waits for it.
    unknown = np.isinf(seen.hi_ns) & (seen.lo_ns <= slo.limit_ns)
    first_unknown_ns = sent_ns[unknown].min(initial=window.end_ns + 1)
    inside = between(sent_ns, window.settled_ns, window.end_ns)
    known = inside & (sent_ns < first_unknown_ns)
    return seen.ns[known], sent_ns[known]


def pool_evidence(evidences: Sequence[Evidence]) -> Evidence:
    """All holds of one level as one: their blocks side by side, with the last one's window."""
    last = evidences[-1]
    if len(evidences) == 1:
        return last
    grids_by_slo = zip(*(e.grids for e in evidences), strict=True)
    growing = [e.unstable for e in evidences if e.unstable]
    return Evidence(
        window=last.window,
        lifetime_ns=float(np.mean([e.lifetime_ns for e in evidences])),
        seconds=sum(e.seconds for e in evidences),
        grids=tuple(np.concatenate(grids) for grids in grids_by_slo),
        ended=np.concatenate([e.ended for e in evidences]),
        errors=np.concatenate([e.errors for e in evidences]),
        tokens=np.concatenate([e.tokens for e in evidences]),
        unstable=growing[0] if growing else "",
        lasting=last.lasting,
        plain=all(e.plain for e in evidences),
    )


def ratio_quantiles(mass: Floats, q: float) -> Floats:
    """Log of the q-quantile's ratio to the limit, for each row of `mass`, shape (rows, RATIO_BINS).

    Linear within a bin, clipped to the grid, [-3, 3]. NaN for a row without observations.
    """
    upto_bin = np.cumsum(mass, axis=1)
    total = upto_bin[:, -1]
    rank = q * total
    quantile_bin = np.argmax(upto_bin >= rank[:, None], axis=1)
    rows = np.arange(len(mass))
    in_bin = mass[rows, quantile_bin]
    before_bin = upto_bin[rows, quantile_bin] - in_bin
    with np.errstate(invalid="ignore", divide="ignore"):
        part_of_bin = np.where(in_bin > 0, (rank - before_bin) / in_bin, 1.0)
    bins_over_limit = quantile_bin - BINS_PER_SIDE - 1 + part_of_bin
    log_ratio = bins_over_limit * (LOG_SPAN / BINS_PER_SIDE)
    within_grid = np.clip(log_ratio, -LOG_SPAN, LOG_SPAN)
    return np.where(total > 0, within_grid, np.nan)


def worst_ratio(evidence: Evidence, slos: Sequence[Slo], weights: Floats | None = None) -> Floats:
    """Max over the SLOs of log(quantile / limit): above 0, the level breaks an SLO.

    With `weights`, shape (replicates, blocks): one value per bootstrap replicate.
    """
    if weights is None:
        weights = np.ones((1, evidence.blocks))
    # Counts add up, so a replicate is a weighted sum of its blocks' grids: nothing is sorted again.
    by_slo = zip(evidence.grids, slos, strict=True)
    ratios = [ratio_quantiles(weights @ grid, slo.q) for grid, slo in by_slo]
    # An SLO without an observation takes no part; NaN remains where none has any.
    known = np.where(np.isnan(ratios), -np.inf, ratios)
    worst = np.asarray(known.max(axis=0), np.float64)
    return np.where(np.isinf(worst), np.nan, worst)
