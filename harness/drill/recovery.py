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

from harness.errors import ConfigError
from harness.metrics.latency_figures import blocked_windows, in_window, sample_figures
from harness.metrics.metrics import ALL_LATENCIES
from harness.metrics.slo import good_requests
from harness.metrics.statistics import MIN_TAIL, interval_ranks, quantile
from harness.units import MS, SECOND, say_ns

if TYPE_CHECKING:
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
    settled, begin, end, until = overload
    sliding = sliding or Sliding.over(until - end)
    if until - end < sliding.needs_ns:
        raise ConfigError(
            f"the load went on for {say_ns(until - end)} after the overload: expected at least "
            f"{say_ns(sliding.needs_ns)}; try a longer phase."
        )
    low, high = former_interval(table, slo, (settled, begin - 1), sliding)
    seen = in_window(ALL_LATENCIES[slo.metric].observe(table), table, slo.metric, end, until)
    order = np.argsort(seen.at_ns, kind="stable")
    at, ns = seen.at_ns[order], seen.ns[order]
    step, run = sliding.step_ns, sliding.together
    starts = np.arange(end, until - sliding.width_ns + 1, step)
    cuts = zip(
        np.searchsorted(at, starts), np.searchsorted(at, starts + sliding.width_ns), strict=True
    )
    # a window without a request has NaN, which is not back
    back = np.array([quantile(np.sort(ns[a:b]), slo.q) <= high for a, b in cuts], bool)
    seconds = inf
    if len(back) >= run:
        steady = np.lib.stride_tricks.sliding_window_view(back, run).all(axis=1)
        if steady.any():
            seconds = float(steady.argmax() * step / SECOND)
    good = np.sort(table.sent_ns[good_requests(table, [slo])])
    over = end + round(seconds * SECOND) if isfinite(seconds) else until
    before, after = np.diff(np.searchsorted(good, [settled, begin, over]))
    lost = before * (over - begin) / (begin - settled) - after
    return Recovery(seconds, (until - end) / SECOND, (low / MS, high / MS), float(lost))


def former_interval(
    table: RecordTable, slo: Slo, baseline: tuple[int, int], sliding: Sliding
) -> tuple[float, float]:
    """Where the quantiles of windows of the baseline lie, in ns: all together 95% of the time."""
    table = table.select((table.sent_ns >= baseline[0]) & (table.sent_ns <= baseline[1]))
    figures = sample_figures(table, slo.metric, blocked_windows(table, [baseline]))
    # The baseline's own quantile varies with its n requests, a window's with its m: their variances
    # add up, which widens the ranks among the n as if each of these resembled 1 + n / m others.
    n, length = figures.n, baseline[1] - baseline[0]
    # For several windows it is Bonferroni's quantile in place of that of one.
    wider = (NORMAL.inv_cdf(1 - 0.025 / sliding.together) / NORMAL.inv_cdf(0.975)) ** 2
    effect = figures.effect(slo.q) * (1 + length / sliding.width_ns) * wider if n else 1.0
    low, high = interval_ranks(n, slo.q, effect, len(figures.block_sizes))
    if n * (1 - slo.q) < MIN_TAIL or not isfinite(figures.quantile(slo.q)):
        raise ConfigError(
            f"the baseline of {say_ns(length)} has {n} requests, {figures.n_failed} of which "
            f"failed: expected {MIN_TAIL} above its {slo.name}, and that it does not fail; try a "
            "longer baseline or a lower rate."
        )
    if figures.quantile(slo.q) > slo.limit_ns:
        raise ConfigError(
            f"the baseline misses {slo} itself: expected a server at rest; try a lower rate, or "
            "more time after an earlier overload."
        )
    # Where the interval has no upper end, or failures, the slowest request that did not fail takes
    # its place, which is stricter.
    last = figures.finite - 1
    return figures.value_at(min(low, last)), figures.value_at(min(high or last, last))
