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

from harness.core.load import CONCURRENT
from harness.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_SLO_MISSED, ServerUnreachable
from harness.metrics.level_figures import Change, Difference
from harness.metrics.statistics import t_quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from harness.core.load import LoadUnit
    from harness.search.fit import Crossing

    Numbers = NDArray[np.float64] | NDArray[np.int64]
Bounds = tuple[float, float]
ALPHA: Final = 0.05  # probability of a false "worse" anywhere, and the same for "better"
MIN_BLOCKS: Final = 4  # blocks with data; fewer give no usable spread
INF: Final = math.inf
MAX_Z: Final = 8.0
MAX_FACTOR: Final = 100.0  # "measure N times as long" is no useful advice above this N
# Two standard deviations that no resampling of blocks shows.
# Where the knee lies between its two levels, in widths of the bracket: a triangular distribution.
KNEE_POSITION_SD: Final = 1 / math.sqrt(24)
# Where a window ends within the period of users in lockstep: the difference of two uniform
# distributions.
WINDOW_END_SD: Final = 1 / math.sqrt(6)
Z_STEP: Final = 1e-3  # to which the largest z that shows a difference is found
KNEE: Final = "knee"
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
    unit: LoadUnit = CONCURRENT  # of levels


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
        of_blocks = [d for d in self.differences if d.metric != ERROR_SHARE]
        is_measured = any(np.isfinite(d.ci95).all() for d in of_blocks)
        return EXIT_OK if is_measured else EXIT_INCONCLUSIVE


@dataclass(slots=True)
class Setting:
    """What `vary` sets, and what was measured with it."""

    name: str
    deployment: str = ""  # a name in the file of deployments
    gpus: int = 0  # of the deployment; 0: not known
    servers: int = 1  # of the deployment
    server: tuple[str, ...] = ()  # arguments of the server
    client: tuple[str, ...] = ()  # arguments of the inner command
    runs: dict[str, int] = field(default_factory=dict)  # run folder: exit code
    starts_s: list[float] = field(default_factory=list)  # of its servers, until they were ready
    flags: dict[str, Any] = field(default_factory=dict)  # of its server, other than the defaults
    failure: str = ""  # why it has no figures: its server did not start, a run is invalid
    figures: dict[str, tuple[float, ...]] = field(default_factory=dict)  # value, 95% interval
    per_gpu: dict[str, tuple[float, ...]] = field(default_factory=dict)  # as `figures`
    unit: str = CONCURRENT.short_many  # of its levels and knee: also sessions or requests/s


@dataclass(frozen=True, slots=True)
class Best:
    """The deployment that is best at one thing, of those measured with the same load."""

    metric: str  # the knee or tokens per second, both per GPU; ttft_p95, itl_p95
    load: float  # users, or their rate, per GPU at which all have it; 0: at its own level
    among: str  # the options of the client; "": all have the same
    setting: str
    ties: tuple[str, ...]  # that it is not shown to be better than
    figure: tuple[float, ...]  # value, 95% interval


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
    values = values[order]
    blocks = blocks[order]
    counts = counts[order]
    n_up_to = np.cumsum(counts)  # observations up to each value
    n = n_up_to[-1]
    rank = math.ceil(q * (n - 1))
    quantile_ns = values[np.searchsorted(n_up_to, rank, "right")]
    point = math.log(max(float(quantile_ns), 1))

    share_error, n_blocks = _error_at_quantile(q, values <= quantile_ns, blocks, counts)
    # Beyond the highest value lies infinity: there the interval has no upper end.
    log_values = np.log(np.append(np.maximum(values, 1), INF))

    def bounds(z: float) -> Bounds:
        off = _student(z, n_blocks) * share_error
        low = np.searchsorted(n_up_to, (q - off) * n)
        high = np.searchsorted(n_up_to, (q + off) * n)
        lo = -INF
        if off < q:
            lo = min(float(log_values[low]), point)
        hi = max(float(log_values[high]), point)
        return lo, hi

    return Side(float(quantile_ns) / 1e6, point, bounds)


def _error_at_quantile(
    q: float, below: NDArray[np.bool_], blocks: Numbers, counts: Numbers
) -> tuple[float, int]:
    """(standard error of the share at or below the q-quantile, the blocks that it is known from).

    Never less than the binomial one.
    """
    sizes = np.bincount(blocks, counts)
    hits = np.bincount(blocks, counts * below)
    with_data = sizes > 0
    block_error = _error(hits[with_data], sizes[with_data])
    binomial_error = math.sqrt(q * (1 - q) / counts.sum())
    return max(block_error, binomial_error), int(with_data.sum())


def rate_side(amounts: Numbers, seconds: Numbers, users: float, holds: int) -> Side:
    """An amount per second, from the amount and the length (s) of each block.

    Users in lockstep produce the same amount in every block, so blocks show no spread; what remains
    is where in their period the window ends.
    """
    total = float(amounts.sum())
    if not total:
        return Side(0.0, -INF, lambda _: (-INF, INF))
    per_s = total / float(seconds.sum())
    point = math.log(per_s)
    window_end_error = WINDOW_END_SD * users * math.sqrt(holds) / total
    relative_error = max(_error(amounts, seconds) / per_s, window_end_error)

    def bounds(z: float) -> Bounds:
        off = _student(z, len(amounts)) * relative_error
        return point - off, point + off

    return Side(per_s, point, bounds)


def share_side(hits: float, n: float) -> Side:
    """A share of requests with Wilson's interval.

    No design effect: a burst of failures is a finding, not noise.
    """

    def bounds(z: float) -> Bounds:
        total = n + z * z
        middle = hits + z * z / 2
        variance = hits * (n - hits) / n + z * z / 4
        half = z * math.sqrt(variance)
        return (middle - half) / total, (middle + half) / total

    return Side(hits / n, hits / n, bounds)


def knee_side(cross: Crossing, unit: LoadUnit = CONCURRENT) -> Side:
    """From the bootstrap draws of the crossing, and the distance of the levels on both sides."""
    step = unit.number(1)
    ends95 = np.quantile(cross.draws, [0.025, 0.975], method="nearest")
    loads = step * np.array([cross.count, *cross.between, *ends95])
    with np.errstate(divide="ignore"):
        logs = np.log(loads)
    point, below, above, lo, hi = logs.tolist()
    if point == INF:  # every level held passes
        low = min(lo, below)
        return Side(cross.count, point, lambda _: (low, INF))
    if point == -INF:  # none does
        high = max(hi, above)
        return Side(cross.count, point, lambda _: (-INF, high))
    # The standard error to either side: what the draws show of it, and what they cannot.
    position_error = KNEE_POSITION_SD * (above - below)
    down = math.hypot(max(point - lo, 0) / Z95, position_error)
    up = math.hypot(max(hi - point, 0) / Z95, position_error)

    def bounds(z: float) -> Bounds:
        return point - z * down, point + z * up

    return Side(step * cross.count, point, bounds)


def mean_side(metric: str, sides: Sequence[Side]) -> Side:
    """Repeated measurements of one figure as one: the mean of their points.

    Its standard error is what the runs show of themselves, or what they differ by if that is more.
    Two runs are too few for Student's t of their spread: nothing could ever be shown.
    """
    if len(sides) == 1:
        return sides[0]
    points = [side.point for side in sides]
    if not np.isfinite(points).all():  # a knee above all levels of one run
        intervals = [side.bounds(Z95) for side in sides]
        low = min(lo for lo, _ in intervals)
        high = max(hi for _, hi in intervals)
        return replace(sides[0], bounds=lambda _: (low, high))
    mean = float(np.mean(points))
    # np.std divides by n, so this is the standard error of the mean.
    spread = float(np.std(points)) / math.sqrt(len(points) - 1)

    def bounds(z: float) -> Bounds:
        intervals = np.array([side.bounds(z) for side in sides])
        distances = np.abs(intervals - np.array(points)[:, None])
        # The errors of independent runs add as squares; the mean has their sum over their number.
        errors = np.hypot.reduce(distances) / len(points)
        down, up = np.maximum(errors, z * spread).tolist()
        return mean - down, mean + up

    return Side(in_unit(metric, mean), mean, bounds)


def in_unit(metric: str, point: float) -> float:
    """The figure, as in result.json, that has this point."""
    if metric == ERROR_SHARE:
        return point
    return math.exp(point) / (1 if metric in MORE_IS_BETTER else 1e6)


def divided(side: Side, by: int) -> Side:
    """The figure of each of so many equal parts: of a GPU, where a server has several."""
    shift = math.log(by)

    def bounds(z: float) -> Bounds:
        low, high = side.bounds(z)
        return low - shift, high - shift

    return Side(side.value / by, side.point - shift, bounds)


def between(metric: str, below: Side, above: Side, share: float) -> Side:
    """A figure at a load between two levels; `share` of the way from the lower to the higher."""
    point = (1 - share) * below.point + share * above.point

    def bounds(z: float) -> Bounds:
        ends = zip(below.bounds(z), above.bounds(z), strict=True)
        low, high = ((1 - share) * a + share * b for a, b in ends)
        return low, high

    return Side(in_unit(metric, point), point, bounds)


def best_setting(settings: Sequence[Setting], pairs: Sequence[Comparison]) -> tuple[str, list[str]]:
    """The best setting, and those that it is not shown to be better than.

    By its knee; of given levels by tokens per second, among those with which no SLO is shown to be
    missed, if there are any. Of deployments, both are per GPU.
    """
    candidates, metric = ranked_by(settings)
    figures = {setting.name: setting.per_gpu or setting.figures for setting in candidates}
    return best_by(metric, {name: figures[name][metric][0] for name in figures}, pairs)


def compared_best(settings: Sequence[Setting], pairs: Sequence[Comparison]) -> str:
    """The best setting; "" where nothing was compared, as one alone is not the best."""
    return best_setting(settings, pairs)[0] if pairs else ""


def ranked_by(settings: Sequence[Setting]) -> tuple[list[Setting], str]:
    """The settings that may be best, and the metric that says which is."""
    candidates = [setting for setting in settings if setting.figures]
    searched = all(KNEE in setting.figures for setting in candidates)
    if searched:
        return candidates, KNEE
    met = [x for x in candidates if EXIT_SLO_MISSED not in x.runs.values()]
    return met or candidates, "output_tokens_per_s"


def best_by(
    metric: str, values: Mapping[str, float], pairs: Sequence[Comparison]
) -> tuple[str, list[str]]:
    """The name with the best value, and those that it is not shown to be better than."""
    if not values:
        return "", []
    choose = max if metric in MORE_IS_BETTER else min
    best = choose(values, key=values.__getitem__)
    beaten = {_beaten_by(best, pair, metric) for pair in pairs}
    return best, [name for name in values if name not in {best, *beaten}]


def _beaten_by(best: str, pair: Comparison, metric: str) -> str | None:
    """The setting that `best` is shown to be better than; None: this pair shows none."""
    if best == pair.b:
        other = pair.a
        is_beaten = Change.better
    elif best == pair.a:
        other = pair.b
        is_beaten = Change.worse
    else:
        return None
    is_shown = any(d.metric == metric and d.verdict is is_beaten for d in pair.differences)
    return other if is_shown else None


def knee_text(knee: float, unit: LoadUnit) -> str:
    """A knee, or an end of its interval, rounded down to a load."""
    if math.isinf(knee):
        return "above all levels"
    return f"{unit.load.floor(knee):,.10g}"


def exit_code(settings: Sequence[Setting]) -> int:
    """0 if each has a result, also a missed SLO; else what kept one from it, else 6."""
    codes = [_setting_exit_code(setting) for setting in settings]
    failures = [code for code in codes if code not in {EXIT_OK, EXIT_INCONCLUSIVE}]
    return failures[0] if failures else max(codes)


def _setting_exit_code(setting: Setting) -> int:
    codes = list(setting.runs.values())
    if not codes:
        return ServerUnreachable.exit_code
    return EXIT_OK if EXIT_OK in codes or EXIT_SLO_MISSED in codes else codes[0]


def compare(pairs: Sequence[Pair], tolerance: float, max_errors: float) -> tuple[Difference, ...]:
    """The difference of each pair. `tolerance` 0.05 allows 5% worse; failures also `max_errors`.

    Holm's procedure over all pairs.
    """
    largest_z = []
    for pair in pairs:
        margin = _margin(pair, tolerance, max_errors)
        largest_z.append(_LargestZ.of(pair, margin))
    weights = _weights(pairs)
    # "Worse", "worse by more than the margin" and "better" each have an alpha of their own.
    are_worse = holm([z.worse for z in largest_z], weights)
    are_beyond = holm([z.beyond for z in largest_z], weights)
    are_better = holm([z.better for z in largest_z], weights)

    differences = []
    for i, pair in enumerate(pairs):
        needs_times = None
        if are_worse[i]:
            verdict = Change.worse
        elif are_better[i]:
            verdict = Change.better
        elif largest_z[i].within >= Z95:
            verdict = Change.no_difference_shown
        else:
            verdict = Change.inconclusive
            first_alpha = ALPHA * weights[i] / sum(weights)
            needs_times = largest_z[i].needs_times(first_alpha)
        differences.append(_difference(pair, verdict, are_beyond[i], needs_times))
    return tuple(differences)


def _weights(pairs: Sequence[Pair]) -> list[int]:
    """In Holm's procedure. The knee gets half of alpha: it is what a search is run for."""
    n_others = sum(pair.metric != KNEE for pair in pairs)
    return [max(n_others, 1) if pair.metric == KNEE else 1 for pair in pairs]


def _difference(pair: Pair, verdict: Change, beyond: bool, needs_times: float | None) -> Difference:
    difference = pair.b.point - pair.a.point
    change = np.array([difference, *difference_interval(pair, Z95)])
    if pair.metric != ERROR_SHARE:  # points are logarithms
        change = np.expm1(change)
    value, lo, hi = change.tolist()
    return Difference(
        metric=pair.metric,
        users=pair.users,
        a=pair.a.value,
        b=pair.b.value,
        change=value,
        ci95=(lo, hi),
        verdict=verdict,
        beyond=beyond,
        needs_times=needs_times,
        unit=pair.unit.short_many,
    )


@dataclass(frozen=True, slots=True)
class _LargestZ:
    """The largest z at which each of these is shown of a pair."""

    worse: float
    beyond: float  # worse by more than the margin
    better: float
    within: float  # not worse by more than the margin

    @classmethod
    def of(cls, pair: Pair, margin: float) -> _LargestZ:
        return cls(
            worse=shown(pair, 0.0, 1),
            beyond=shown(pair, margin, 1),
            better=shown(pair, 0.0, -1),
            within=shown(pair, margin, -1),
        )

    def needs_times(self, alpha: float) -> float | None:
        """How many times as many requests would probably show one; None: too many, or unknown.

        `alpha`: at which Holm's procedure tests the pair, if it is the first one. As z grows by the
        square root of the number of requests, so does the number by the square of z.
        """
        worse_z = max(-_NORMAL.inv_cdf(alpha), Z95)
        times = INF
        if self.worse:
            times = (worse_z / self.worse) ** 2
        if self.within:
            times = min(times, (Z95 / self.within) ** 2)
        return round(max(times, 1.1), 1) if times <= MAX_FACTOR else None


def shown(pair: Pair, margin: float, side: int) -> float:
    """The largest z at which B is worse than A by more (side 1) or less (side -1) than `margin`."""
    up = side * _sign(pair) > 0

    def apart(z: float) -> bool:
        lo, hi = difference_interval(pair, z)
        return (lo if up else -hi) > side * margin

    # Intervals only widen with z, so the largest z is found by bisection.
    low = 0.0
    high = MAX_Z if apart(1e-6) else 0.0
    if apart(high):
        return high
    while high - low > Z_STEP:
        middle = (low + high) / 2
        if apart(middle):
            low = middle
        else:
            high = middle
    return low


def difference_interval(pair: Pair, z: float) -> Bounds:
    """The interval of B's point minus A's for independent sides (Zou and Donner, 2008)."""
    a_lo, a_hi = pair.a.bounds(z)
    b_lo, b_hi = pair.b.bounds(z)
    a = pair.a.point
    b = pair.b.point
    if math.isinf(a) or math.isinf(b):
        # Infinite ends of the same sign have no difference: then nothing is known on that side.
        lo = b_lo - a_hi
        hi = b_hi - a_lo
        if math.isnan(lo):
            lo = -INF
        if math.isnan(hi):
            hi = INF
        return lo, hi
    down = math.hypot(b - b_lo, a_hi - a)
    up = math.hypot(b_hi - b, a - a_lo)
    return b - a - down, b - a + up


def holm(z: Sequence[float], weights: Sequence[int]) -> list[bool]:
    """Which differences are shown, at ALPHA over all of them together.

    None is shown whose own 95% interval contains "no change".
    """
    p = [_NORMAL.cdf(-one) for one in z]
    are_shown = [False] * len(z)
    weight_left = sum(weights)
    clearest_first = sorted(range(len(z)), key=lambda i: p[i] / weights[i])
    for i in clearest_first:
        tested_at = ALPHA * weights[i] / weight_left
        if p[i] > tested_at:
            break
        are_shown[i] = z[i] >= Z95
        weight_left -= weights[i]
    return are_shown


def _student(z: float, blocks: int) -> float:
    """The t quantile for this many blocks at the probability of z normal standard errors."""
    if blocks < MIN_BLOCKS:
        return INF
    return -t_quantile(_NORMAL.cdf(-z), blocks - 1)


def _error(hits: Numbers, sizes: Numbers) -> float:
    """Standard error of sum(hits) / sum(sizes): the limit of a bootstrap of the blocks."""
    n = float(sizes.sum())
    n_blocks = len(sizes)
    off = hits - hits.sum() / n * sizes
    # Blocks that resemble their neighbors tell less.
    covariance = max(2 * off[1:] @ off[:-1], 0)
    spread = float(off @ off + covariance)
    few_blocks = n_blocks / max(n_blocks - 1, 1)
    return math.sqrt(few_blocks * spread) / n


def _sign(pair: Pair) -> int:
    return -1 if pair.metric in MORE_IS_BETTER else 1


def _margin(pair: Pair, tolerance: float, max_errors: float) -> float:
    """The tolerance as a difference of points, in the direction of worse."""
    if pair.metric == ERROR_SHARE:
        return min(tolerance, max_errors)
    # At a loss of 100% nothing is left: no difference is beyond that.
    if tolerance >= 1 and _sign(pair) < 0:
        return INF
    return abs(math.log1p(_sign(pair) * tolerance))
