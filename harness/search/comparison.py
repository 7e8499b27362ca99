"""Compare two measurements of the same figure: the difference, its interval, and a verdict.

A `Side` is a figure with an interval for any z: the interval covers the true value as often as z
standard errors cover a normal one. Errors come from blocks of time, in the closed form that a
bootstrap of the blocks converges to: Holm's procedure needs probabilities of 0.0003, which 400
replicates cannot resolve. Only the knee has no closed form; its bootstrap draws are extrapolated. A
quantile's interval ends at the order statistics that lie z standard errors of the share below and
above it: no distribution is assumed, failures are infinite, and with few observations there is no
upper end. With few blocks z is replaced by Student's t.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_SLO_MISSED, ServerUnreachable
from harness.metrics.level_figures import Change, Difference
from harness.metrics.statistics import t_quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from harness.search.fit import Crossing

    Numbers = NDArray[np.float64] | NDArray[np.int64]
Bounds = tuple[float, float]
ALPHA: Final = 0.05  # probability of a false "worse" anywhere, and the same for "better"
MIN_BLOCKS: Final = 4  # blocks with data; fewer give no usable spread
INF: Final = math.inf
MAX_Z: Final = 8.0
MAX_FACTOR: Final = 100.0  # "measure N times as long" is no useful advice above this N
# Two standard deviations that no resampling of blocks shows. Where the knee lies between its two
# levels, in widths of the bracket: a triangular distribution. Where a window ends within the period
# of users in lockstep: the difference of two uniform distributions.
KNEE_POSITION_SD, WINDOW_END_SD = 1 / math.sqrt(24), 1 / math.sqrt(6)
KNEE: Final = "knee"
PER_S: Final = "requests/s"  # the unit of levels that are rates
ERROR_SHARE: Final = "error_share"
MORE_IS_BETTER: Final = (KNEE, "output_tokens_per_s", "requests_per_s")
_NORMAL: Final = NormalDist()
Z95: Final = _NORMAL.inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Side:
    """One figure of one run."""

    value: float  # in the unit of result.json: ms, 1/s, a share, users or their rate
    point: float  # its logarithm; a share is kept as it is
    bounds: Callable[[float], Bounds]  # interval of `point`, by z


INFINITE: Final = Side(INF, INF, lambda _: (INF, INF))


@dataclass(frozen=True, slots=True)
class Pair:
    """The same figure of both runs."""

    metric: str  # ttft_p95, ..., or one of the names above
    users: float  # the level; 0: the whole run
    a: Side
    b: Side
    unit: str = "users"  # of levels


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences of two runs; `a` is the baseline."""

    a: str
    b: str
    tolerance: float
    unlike: Mapping[str, Sequence[str]]  # other differences between the runs: (of A, of B)
    differences: tuple[Difference, ...]  # the knee's first, then by level

    @property
    def exit_code(self) -> int:
        """99: worse by more than the tolerance; 6: too little was measured for any interval."""
        if any(d.beyond for d in self.differences):
            return EXIT_SLO_MISSED
        known = [np.isfinite(d.ci95).all() for d in self.differences if d.metric != ERROR_SHARE]
        return EXIT_OK if any(known) else EXIT_INCONCLUSIVE


@dataclass(slots=True)
class Setting:
    """What `vary` sets, and what was measured with it."""

    name: str
    server: tuple[str, ...] = ()  # arguments of the server
    client: tuple[str, ...] = ()  # arguments of the inner command
    runs: dict[str, int] = field(default_factory=dict)  # run folder: exit code
    starts_s: list[float] = field(default_factory=list)  # of its servers, until they were ready
    flags: dict[str, Any] = field(default_factory=dict)  # of its server, other than the defaults
    failure: str = ""  # why it has no figures: its server did not start, a run is invalid
    figures: dict[str, tuple[float, ...]] = field(default_factory=dict)  # value, 95% interval
    unit: str = "users"  # of its levels and knee: also sessions or requests/s


@dataclass(frozen=True, slots=True)
class Coefficient:
    """What a latency grows by with a length, over settings that differ in it."""

    name: str  # with its unit
    value: float
    ci95: Bounds
    meaning: str
    load: float  # the same with all settings: users, or requests per second


def latency_side(q: float, values: Numbers, blocks: Numbers, counts: Numbers | None = None) -> Side:
    """The q-quantile of values (ns, shape n) with their blocks and their counts (None: 1 each)."""
    counts = np.ones(len(values)) if counts is None else counts
    order = np.argsort(values, kind="stable")
    values, blocks, counts = values[order], blocks[order], counts[order]
    upto = np.cumsum(counts)
    n = upto[-1]
    # The error is that of the share at or below the quantile, never less than the binomial one.
    at = values[np.searchsorted(upto, math.ceil(q * (n - 1)), "right")]
    sizes, hits = (np.bincount(blocks, each) for each in (counts, counts * (values <= at)))
    error = max(_error(hits[sizes > 0], sizes[sizes > 0]), math.sqrt(q * (1 - q) / n))
    ns, used = float(at), int((sizes > 0).sum())
    logs, point = np.log(np.append(np.maximum(values, 1), INF)), math.log(max(ns, 1))

    def bounds(z: float) -> Bounds:
        off = _student(z, used) * error
        low, high = np.searchsorted(upto, [(q - off) * n, (q + off) * n])
        return min(float(logs[low]), point) if off < q else -INF, max(float(logs[high]), point)

    return Side(ns / 1e6, point, bounds)


def rate_side(amounts: Numbers, seconds: Numbers, users: float, holds: int) -> Side:
    """An amount per second, from the amount and the length (s) of each block.

    Users in lockstep produce the same amount in every block, so blocks show no spread; what remains
    is where in their period the window ends.
    """
    total, used = float(amounts.sum()), len(amounts)
    if not total:
        return Side(0.0, -INF, lambda _: (-INF, INF))
    per_s = total / float(seconds.sum())
    error = max(_error(amounts, seconds) / per_s, WINDOW_END_SD * users * math.sqrt(holds) / total)
    point = math.log(per_s)
    return Side(per_s, point, lambda z: (point - (x := _student(z, used) * error), point + x))


def share_side(hits: float, n: float) -> Side:
    """A share of requests with Wilson's interval.

    No design effect: a burst of failures is a finding, not noise.
    """

    def bounds(z: float) -> Bounds:
        middle, half = hits + z * z / 2, z * math.sqrt(hits * (n - hits) / n + z * z / 4)
        return (middle - half) / (n + z * z), (middle + half) / (n + z * z)

    return Side(hits / n, hits / n, bounds)


def knee_side(cross: Crossing, step: float = 1.0) -> Side:
    """From the bootstrap draws of the crossing, and the distance of the levels on both sides.

    `step`: what the crossing counts, 0.01/s for example.
    """
    ends95 = np.quantile(cross.draws, [0.025, 0.975], method="nearest")
    with np.errstate(divide="ignore"):
        logs = np.log(step * np.array([cross.users, *cross.between, *ends95]))
    point, below, above, lo, hi = logs.tolist()
    if math.isinf(point):  # every level held passes, or none does
        ends = (min(lo, below), INF) if point > 0 else (-INF, max(hi, above))
        return Side(cross.users, point, lambda _: ends)
    apart = KNEE_POSITION_SD * (above - below)
    down, up = (math.hypot(max(x, 0) / Z95, apart) for x in (point - lo, hi - point))
    return Side(step * cross.users, point, lambda z: (point - z * down, point + z * up))


def mean_side(metric: str, sides: Sequence[Side]) -> Side:
    """Repeated measurements of one figure as one: the mean of their points.

    Its standard error is what the runs show of themselves, or what they differ by if that is more.
    Two runs are too few for Student's t of their spread: nothing could ever be shown.
    """
    points = [side.point for side in sides]
    if len(points) == 1 or not np.isfinite(points).all():  # a knee above all levels of one run
        ends = [side.bounds(Z95) for side in sides]
        low, high = min(lo for lo, _ in ends), max(hi for _, hi in ends)
        return sides[0] if len(sides) == 1 else replace(sides[0], bounds=lambda _: (low, high))
    point, spread = float(np.mean(points)), float(np.std(points)) / math.sqrt(len(points) - 1)

    def bounds(z: float) -> Bounds:
        off = np.abs(np.array([side.bounds(z) for side in sides]) - np.array(points)[:, None])
        down, up = np.maximum(np.hypot.reduce(off) / len(points), z * spread).tolist()
        return point - down, point + up

    return Side(in_unit(metric, point), point, bounds)


def in_unit(metric: str, point: float) -> float:
    """The figure, as in result.json, that has this point."""
    if metric == ERROR_SHARE:
        return point
    return math.exp(point) / (1 if metric in MORE_IS_BETTER else 1e6)


def best_setting(settings: Sequence[Setting], pairs: Sequence[Comparison]) -> tuple[str, list[str]]:
    """The best setting, and those that it is not shown to be better than.

    By its knee; of given levels by tokens per second, among those with which no SLO is shown to be
    missed, if there are any.
    """
    known = [one for one in settings if one.figures]
    searched = all(KNEE in one.figures for one in known)
    metric = KNEE if searched else MORE_IS_BETTER[1]
    met = [one for one in known if EXIT_SLO_MISSED not in one.runs.values()]
    able = known if searched or not met else met
    best = max(able, key=lambda one: one.figures[metric][0]).name if able else ""
    shown = {
        c.a if c.b == best else c.b
        for c in pairs
        for d in c.differences
        if d.metric == metric
        and best in (c.a, c.b)
        and d.verdict is (Change.better if best == c.b else Change.worse)
    }
    return best, [one.name for one in able if one.name not in {best, *shown}]


def knee_text(knee: float, unit: str) -> str:
    """A knee, or an end of its interval, in whole users or hundredths of a rate."""
    parts = 100 if unit == PER_S else 1
    return "above all levels" if math.isinf(knee) else f"{math.floor(parts * knee) / parts:,.10g}"


def exit_code(settings: Sequence[Setting]) -> int:
    """0 if each has a result, also a missed SLO; else what kept one from it, else 6."""
    each = [list(one.runs.values()) or [ServerUnreachable.exit_code] for one in settings]
    codes = [EXIT_OK if {EXIT_OK, EXIT_SLO_MISSED} & {*of} else of[0] for of in each]
    return next((c for c in codes if c not in {EXIT_OK, EXIT_INCONCLUSIVE}), max(codes))


def compare(pairs: Sequence[Pair], tolerance: float, max_errors: float) -> tuple[Difference, ...]:
    """The difference of each pair. `tolerance` 0.05 allows 5% worse; failures also `max_errors`.

    Holm's procedure over all pairs. The knee gets half of alpha: it is what a search is run for.
    """
    knees = sum(pair.metric == KNEE for pair in pairs)
    weights = [max(len(pairs) - knees, 1) if pair.metric == KNEE else 1 for pair in pairs]
    allowed = [_margin(pair, tolerance, max_errors) for pair in pairs]
    none = [0.0] * len(pairs)
    worse, beyond, better, within = (
        [shown(pair, margin, side) for pair, margin in zip(pairs, margins, strict=True)]
        for margins, side in ((none, 1), (allowed, 1), (none, -1), (allowed, -1))
    )
    are_worse, are_beyond, are_better = (holm(z, weights) for z in (worse, beyond, better))
    out = []
    for i, pair in enumerate(pairs):
        a, b = pair.a, pair.b
        found = np.array([b.point - a.point, *difference_interval(pair, Z95)])
        change, *ci95 = (found if pair.metric == ERROR_SHARE else np.expm1(found)).tolist()
        cases = (are_worse[i], are_better[i], within[i] >= Z95, True)
        verdict, needs = list(Change)[cases.index(True)], None
        if verdict is Change.inconclusive:
            required = max(-_NORMAL.inv_cdf(ALPHA * weights[i] / sum(weights)), Z95)
            margins_to_gap = [(required, worse[i]), (Z95, within[i])]
            times = min(((want / has) ** 2 for want, has in margins_to_gap if has), default=INF)
            needs = round(max(times, 1.1), 1) if times <= MAX_FACTOR else None
        figures = a.value, b.value, change, tuple(ci95), verdict, are_beyond[i], needs
        out.append(Difference(pair.metric, pair.users, *figures, pair.unit))
    return tuple(out)


def shown(pair: Pair, margin: float, side: int) -> float:
    """The largest z at which B is worse than A by more (side 1) or less (side -1) than `margin`."""
    up = side * _sign(pair) > 0

    def apart(z: float) -> bool:
        lo, hi = difference_interval(pair, z)
        return (lo if up else -hi) > side * margin

    # Intervals only widen with z, so the largest z is found by bisection.
    low, high = 0.0, MAX_Z if apart(1e-6) else 0.0
    if apart(high):
        return high
    while high - low > 1e-3:  # noqa: PLR2004 - of a z
        middle = (low + high) / 2
        low, high = (middle, high) if apart(middle) else (low, middle)
    return low


def difference_interval(pair: Pair, z: float) -> Bounds:
    """The interval of B's point minus A's for independent sides (Zou and Donner, 2008)."""
    (a_lo, a_hi), (b_lo, b_hi) = pair.a.bounds(z), pair.b.bounds(z)
    a, b = pair.a.point, pair.b.point
    if math.isinf(a) or math.isinf(b):
        lo, hi = b_lo - a_hi, b_hi - a_lo
        return -INF if math.isnan(lo) else lo, INF if math.isnan(hi) else hi
    return b - a - math.hypot(b - b_lo, a_hi - a), b - a + math.hypot(b_hi - b, a - a_lo)


def holm(z: Sequence[float], weights: Sequence[int]) -> list[bool]:
    """Which differences are shown, at ALPHA over all of them together.

    None is shown whose own 95% interval contains "no change".
    """
    p = [_NORMAL.cdf(-one) for one in z]
    left, going, out = sum(weights), True, [False] * len(z)
    for i in sorted(range(len(z)), key=lambda i: p[i] / weights[i]):
        going = going and p[i] <= ALPHA * weights[i] / left
        out[i] = going and z[i] >= Z95
        left -= weights[i]
    return out


def _student(z: float, blocks: int) -> float:
    """The t quantile for this many blocks at the probability of z normal standard errors."""
    return -t_quantile(_NORMAL.cdf(-z), blocks - 1) if blocks >= MIN_BLOCKS else INF


def _error(hits: Numbers, sizes: Numbers) -> float:
    """Standard error of sum(hits) / sum(sizes): the limit of a bootstrap of the blocks."""
    n, blocks = float(sizes.sum()), len(sizes)
    off = hits - hits.sum() / n * sizes
    # The second term is the covariance of neighbors: blocks that resemble each other tell less.
    spread = float(off @ off + max(2 * off[1:] @ off[:-1], 0))
    return math.sqrt(blocks / max(blocks - 1, 1) * spread) / n


def _sign(pair: Pair) -> int:
    return -1 if pair.metric in MORE_IS_BETTER else 1


def _margin(pair: Pair, tolerance: float, max_errors: float) -> float:
    """The tolerance as a difference of points, in the direction of worse."""
    if pair.metric == ERROR_SHARE:
        return min(tolerance, max_errors)
    if tolerance >= 1 and _sign(pair) < 0:
        return INF
    return abs(math.log1p(_sign(pair) * tolerance))
