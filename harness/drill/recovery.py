"""Recovery: how long after an overload a latency is back where it was, and what that cost.

Windows of one width slide over what was sent after the overload. A window is back when its quantile
is at most the upper end of the former interval. The time to recover ends where the first window
begins from which on all windows are back for `persist_ns`. So a lull between two waves is no
recovery, and a request that is sent at that instant meets a server as it was before.

The former interval is where the quantiles of as many windows as must be back together lay in the
baseline, all of them, 95% of the time. With the plain interval of the baseline's quantile, or of
one window's, a server that had never been overloaded took a while to recover in one seed of ten.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from harness.core.arrays import between
from harness.errors import ConfigError
from harness.metrics.latency_figures import blocked_windows, in_window, sample_figures
from harness.metrics.metrics import ALL_LATENCIES
from harness.metrics.slo import good_requests
from harness.metrics.statistics import MIN_TAIL, interval_ranks, quantile
from harness.units import MS, SECOND, say_ns

if TYPE_CHECKING:
    from harness.core.arrays import Bools
    from harness.metrics.slo import Slo
    from harness.records.record_table import RecordTable

STEPS: Final = 20  # in a window's width: how finely windows slide
WIDTHS_WATCHED: Final = 3.5  # windows that the time after the overload holds at least
NORMAL: Final = NormalDist()


class Overload(NamedTuple):
    """Instants on the records' clock."""

    settled_ns: int  # the baseline lasts from here
    begin_ns: int  # to here
    end_ns: int  # the last request of the overload was due
    until_ns: int  # the load of the baseline went on to here


class Sliding(NamedTuple):
    """How wide the windows are, and for how long all of them must be back."""

    width_ns: int = 10 * SECOND
    persist_ns: int = 10 * SECOND

    @classmethod
    def over(cls, watched_ns: int) -> Sliding:
        """Both 10 s, or less where that would leave no time to be back in; at least 1 s."""
        width_ns = min(10 * SECOND, max(SECOND, int(watched_ns / WIDTHS_WATCHED)))
        return cls(width_ns, width_ns)

    @property
    def needs_ns(self) -> int:
        """After a recovery, until it is seen."""
        return self.width_ns + self.persist_ns

    @property
    def step_ns(self) -> int:
        return max(self.width_ns // STEPS, 1)

    @property
    def together(self) -> int:
        """Windows that must be back one after another."""
        # Both ends count: so many steps lie between one window more.
        return -(-self.persist_ns // self.step_ns) + 1


@dataclass(frozen=True, slots=True)
class Recovery:
    """One overload."""

    seconds: float  # from the overload's end; inf: not seen within `watched_s`
    watched_s: float  # from the overload's end, how long the load went on
    former_ms: tuple[float, float]  # of the windows' quantiles in the baseline
    # Requests that met the SLO, from the overload's begin to the recovery (or to the end if it
    # never came): what the baseline's rate would have brought, less what came.
    good_lost: float

    @property
    def came_back(self) -> bool:
        return isfinite(self.seconds)


def recovery(
    table: RecordTable, slo: Slo, overload: Overload, sliding: Sliding | None = None
) -> Recovery:
    """What the records say. Raises ConfigError if they are too short, or the baseline too slow."""
    watched_ns = overload.until_ns - overload.end_ns
    if sliding is None:
        sliding = Sliding.over(watched_ns)
    if watched_ns < sliding.needs_ns:
        raise ConfigError(
            f"the load went on for {say_ns(watched_ns)} after the overload: expected at least "
            f"{say_ns(sliding.needs_ns)}; try a longer phase."
        )
    baseline = (overload.settled_ns, overload.begin_ns - 1)
    low_ns, high_ns = former_interval(table, slo, baseline, sliding)
    back = _windows_back(table, slo, overload, sliding, high_ns)
    seconds = inf
    if len(back) >= sliding.together:
        # A row for each window: whether it and those after it are back, as many as must be
        # together.
        runs = np.lib.stride_tricks.sliding_window_view(back, sliding.together)
        steady = runs.all(axis=1)
        if steady.any():
            seconds = float(steady.argmax() * sliding.step_ns / SECOND)
    return Recovery(
        seconds=seconds,
        watched_s=watched_ns / SECOND,
        former_ms=(low_ns / MS, high_ns / MS),
        good_lost=_good_lost(table, slo, overload, seconds),
    )


def _windows_back(
    table: RecordTable, slo: Slo, overload: Overload, sliding: Sliding, high_ns: float
) -> Bools:
    """Of each window after the overload, whether its quantile is at most `high_ns`."""
    observed = ALL_LATENCIES[slo.metric].observe(table)
    after = in_window(observed, table, slo.metric, overload.end_ns, overload.until_ns)
    order = np.argsort(after.at_ns, kind="stable")
    at_ns = after.at_ns[order]
    latency_ns = after.ns[order]
    last_start_ns = overload.until_ns - sliding.width_ns
    starts_ns = np.arange(overload.end_ns, last_start_ns + 1, sliding.step_ns)
    firsts = np.searchsorted(at_ns, starts_ns)
    behinds = np.searchsorted(at_ns, starts_ns + sliding.width_ns)
    back = np.zeros(len(starts_ns), bool)
    for number in range(len(starts_ns)):
        in_window_ns = latency_ns[firsts[number] : behinds[number]]
        # a window without a request has NaN, which is not back
        back[number] = quantile(np.sort(in_window_ns), slo.q) <= high_ns
    return back


def _good_lost(table: RecordTable, slo: Slo, overload: Overload, seconds: float) -> float:
    """What `Recovery.good_lost` says; `seconds` to the recovery."""
    over_ns = overload.until_ns
    if isfinite(seconds):
        over_ns = overload.end_ns + round(seconds * SECOND)
    # A retry is a request of its own: what it brings counts as what came (docs/recovery.md).
    good_ns = np.sort(table.sent_ns[good_requests(table, [slo])])
    edges_ns = [overload.settled_ns, overload.begin_ns, over_ns]
    before, since = np.diff(np.searchsorted(good_ns, edges_ns))
    baseline_ns = overload.begin_ns - overload.settled_ns
    expected = before * (over_ns - overload.begin_ns) / baseline_ns
    return float(expected - since)


def former_interval(
    table: RecordTable, slo: Slo, baseline: tuple[int, int], sliding: Sliding
) -> tuple[float, float]:
    """Where the quantiles of windows of the baseline lie, in ns: all together 95% of the time."""
    begin_ns, end_ns = baseline
    table = table.select(between(table.sent_ns, begin_ns, end_ns))
    figures = sample_figures(table, slo.metric, blocked_windows(table, [baseline]))
    n = figures.n
    length_ns = end_ns - begin_ns
    quantile_ns = figures.quantile(slo.q)
    n_above = n * (1 - slo.q)
    if n_above < MIN_TAIL or not isfinite(quantile_ns):
        raise ConfigError(
            f"the baseline of {say_ns(length_ns)} has {n} requests, {figures.n_failed} of which "
            f"failed: expected {MIN_TAIL} above its {slo.name}, and that it does not fail; try a "
            "longer baseline or a lower rate."
        )
    # A server that is still busy with an earlier overload would be "back" at once.
    if quantile_ns > slo.limit_ns:
        raise ConfigError(
            f"the baseline misses {slo} itself: expected a server at rest; try a lower rate, or "
            "more time after an earlier overload."
        )
    # The baseline's own quantile varies with its n requests, a window's with its m: their variances
    # add up, which widens the ranks among the n as if each of these resembled 1 + n / m others.
    wider_for_window = 1 + length_ns / sliding.width_ns
    # For several windows it is Bonferroni's quantile in place of that of one.
    z_of_one = NORMAL.inv_cdf(0.975)
    z_of_all = NORMAL.inv_cdf(1 - 0.025 / sliding.together)
    bonferroni = z_of_all / z_of_one
    effect = figures.effect(slo.q) * wider_for_window * bonferroni**2
    low, high = interval_ranks(n, slo.q, effect, len(figures.block_sizes))
    # Where the interval has no upper end, or failures, the slowest request that did not fail takes
    # its place, which is stricter.
    last = figures.finite - 1
    low_ns = figures.value_at(min(low, last))
    high_ns = figures.value_at(min(high or last, last))
    return low_ns, high_ns
