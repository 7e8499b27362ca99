"""PromQL once more, in Python, over the samples that a Prometheus stored: what it should answer.

A term is a function (Stored, t) -> Vector. It chooses series by their instance alone, so that the
joins by which dashboards choose a run, a model and a target are proven by comparing the two.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import isnan, nan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from prometheus_server import Labels, Point

    Vector = dict[Labels, float]
    Term = Callable[["Stored", float], Vector]


@dataclass
class Stored:
    """All samples; `instances`: of which page a name is: run, beside, server."""

    series: Mapping[Labels, list[Point]]
    instances: Mapping[str, tuple[str, ...]]
    version: int
    window_s: float = 10.0
    nudge: float = 1.0  # of ranks: one that falls on a bucket's edge may be rounded either way
    _by_name: dict[tuple[str, str], list[tuple[dict[str, str], list[Point]]]] = field(
        default_factory=dict
    )
    _rates: dict[tuple[str, str, float], list[tuple[dict[str, str], float]]] = field(
        default_factory=dict
    )

    def of(self, page: str, name: str) -> list[tuple[dict[str, str], list[Point]]]:
        """(labels, samples) of each series of that name on those pages."""
        if not self._by_name:
            for labels, points in self.series.items():
                named = dict(labels)
                key = (named["instance"], named.pop("__name__"))
                self._by_name.setdefault(key, []).append((named, points))
        each = (self._by_name.get((where, name), []) for where in self.instances[page])
        return [one for found in each for one in found]

    def scraped(self, labels: Mapping[str, str], t: float) -> float:
        """When the page of a series was last scraped at `t`; NaN: never, or that failed."""
        [(_, points)] = self._by_name[labels["instance"], "up"]
        place = bisect_right(points, (t, 9.9)) - 1
        return points[place][0] if place >= 0 and points[place][1] == 1 else nan

    def rates(self, page: str, name: str, t: float) -> list[tuple[dict[str, str], float]]:
        """Per second, of each series with two samples in the window."""
        key = (page, name, t)
        if key not in self._rates:
            found = []
            for labels, points in self.of(page, name):
                inside = window(points, t - self.window_s, t)
                if len(inside) > 1:
                    each = rate(inside, t - self.window_s, t, self.version)
                    found.append((labels, each))
            self._rates[key] = found
        return self._rates[key]


def window(points: list[Point], start: float, end: float) -> list[Point]:
    """Those in (start, end]."""
    first = bisect_right(points, (start, float("inf")))
    return points[first : bisect_right(points, (end, float("inf")))]


def rate(inside: list[Point], start: float, end: float, version: int) -> float:
    """Prometheus' extrapolation to the window's ends: promql/functions.go."""
    (first_t, first), (last_t, last) = inside[0], inside[-1]
    values = [v for _, v in inside]
    total = last - first + sum(a for a, b in pairwise(values) if b < a)
    sampled = round(
        last_t - first_t, 3
    )  # whole milliseconds, which floats of 1.8e9 only nearly are
    between = sampled / (len(inside) - 1)
    before, after = round(first_t - start, 3), round(end - last_t, 3)
    zero = sampled * (first / total) if total > 0 and first >= 0 else before
    if version >= 3:
        before = between / 2 if before >= between * 1.1 else before
        before = min(before, zero)
    else:
        before = min(before, zero)
        before = between / 2 if before >= between * 1.1 else before
    after = between / 2 if after >= between * 1.1 else after
    return total * (sampled + before + after) / sampled / round(end - start, 3)


def _kept(labels: Mapping[str, str], where: Mapping[str, str]) -> bool:
    return all(
        labels.get(k) != v[1:] if v.startswith("!") else labels.get(k, "").startswith(v[:-1])
        if v.endswith("*") else labels.get(k) == v
        for k, v in where.items()
    )  # fmt: skip


def gauge(page: str, name: str, **where: str) -> Term:
    """What the last scrape showed; `a="x*"`: begins with x, `a="!x"`: is not x."""

    def term(s: Stored, t: float) -> Vector:
        found: Vector = {}
        for labels, points in s.of(page, name):
            at = s.scraped(labels, t)
            place = bisect_right(points, (t, float("inf"))) - 1
            if place >= 0 and points[place][0] == at and _kept(labels, where):
                found[tuple(sorted(labels.items()))] = points[place][1]
        return found

    return term


def per_s(page: str, name: str, **where: str) -> Term:
    """rate(); nothing of a run or exporter that is gone."""

    def term(s: Stored, t: float) -> Vector:
        return {
            tuple(sorted(labels.items())): value
            for labels, value in s.rates(page, name, t)
            if _kept(labels, where) and (page == "server" or not isnan(s.scraped(labels, t)))
        }

    return term


def by(of: Term, *names: str, over: Callable[[list[float]], float] = sum) -> Term:
    """Aggregated, keeping some labels."""

    def term(s: Stored, t: float) -> Vector:
        groups: dict[Labels, list[float]] = {}
        for labels, value in of(s, t).items():
            groups.setdefault(tuple(p for p in labels if p[0] in names), []).append(value)
        return {labels: over(values) for labels, values in groups.items()}

    return term


def mean(values: list[float]) -> float:
    """avg()."""
    return sum(values) / len(values)


def each(of: Term, what: Callable[[float], float | None]) -> Term:
    """A function of each value; None drops it."""
    return lambda s, t: {
        labels: made for labels, v in of(s, t).items() if (made := what(v)) is not None
    }


def pair(a: Term, b: Term, what: Callable[[float, float], float]) -> Term:
    """Of two vectors with the same labels."""

    def term(s: Stored, t: float) -> Vector:
        left, right = a(s, t), b(s, t)
        return {labels: what(v, right[labels]) for labels, v in left.items() if labels in right}

    return term


def over(a: Term, b: Term) -> Term:
    """A / b, where 0 / 0 is NaN."""
    return pair(a, b, lambda x, y: x / y if y else nan if x == 0 or isnan(x) else float("inf"))


def only_while(of: Term, condition: Term) -> Term:
    """`and on ()`."""
    return lambda s, t: of(s, t) if condition(s, t) else {}


def quantile(q: float, page: str, name: str) -> Term:
    """histogram_quantile of all series of a histogram together."""
    buckets = by(per_s(page, f"{name}_bucket"), "le")

    def term(s: Stored, t: float) -> Vector:
        found = sorted((float(dict(labels)["le"]), v) for labels, v in buckets(s, t).items())
        return {(): interpolated(q * s.nudge, found)} if found else {}

    return term


def interpolated(q: float, buckets: list[tuple[float, float]]) -> float:
    """From (bound, cumulative count), the last of them +Inf.

    Counts that fall from one bucket to the next, as extrapolation may make them, are levelled.
    """
    levels = accumulate((count for _, count in buckets), max)
    buckets = [(bound, count) for (bound, _), count in zip(buckets, levels, strict=True)]
    total = buckets[-1][1]
    if total == 0:
        return nan
    rank, low, under = q * total, 0.0, 0.0
    for bound, count in buckets[:-1]:
        if count >= rank:
            return low + (bound - low) * (rank - under) / (count - under)
        low, under = bound, count
    return low
