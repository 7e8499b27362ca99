"""The state of a run as the live page gets it: facts that change rarely, and points over time."""

# A page polls once a second with a cursor that tells what it already has, and gets only what is
# new. The number of points is bounded: at MAX_POINTS every second point is dropped, and from then
# on only every second one is added. So a run of any length costs the same memory and bytes, and
# points stay evenly spaced.

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from harness.core.states import Status, Verdict
from harness.export.live_charts import KV_COLUMN, SERVER_LINES, live_charts
from harness.metrics.metrics import LATENCIES
from harness.metrics.recent_latencies import LIVE_KEYS, LIVE_QUANTILES
from harness.metrics.statistics import QUANTILES
from harness.units import MS

if TYPE_CHECKING:
    from harness.metrics.slo import Slo

MAX_POINTS: Final = 1_800
COLUMNS: Final = (
    "t_s",
    "users",
    "tokens_per_s",
    *SERVER_LINES,
    KV_COLUMN,
    *(f"{key}_{name}_ms" for key in LIVE_KEYS for name in LIVE_QUANTILES),
)
LATENCY_ROWS: Final = [
    {"key": key, "name": row.name, "headline": row.headline}
    for key, row in LATENCIES.items()
    if row.live
]
Point = list[float | str | None]
_CURSOR: Final = re.compile(
    r"(?P<run>[0-9a-f]{1,20})-(?P<thinned>\d{1,9})-(?P<points>\d{1,9})-(?P<version>\d{1,9})"
)


def slo_facts(slos: Sequence[Slo]) -> list[dict[str, Any]]:
    return [_facts_of(slo) for slo in slos]


def _facts_of(slo: Slo) -> dict[str, Any]:
    key = slo.metric
    statistic = slo.statistic
    if slo.speed:
        # an output speed is drawn on the TPOT chart, as the time per token that it stands for
        key = "tpot"
        statistic = f"{slo.name},"
    limit_ms = slo.limit_ns / MS
    return {
        "key": key,
        "statistic": statistic,
        "limit": slo.limit,
        "unit": slo.unit,
        "limit_ms": limit_ms,
    }


@dataclass(slots=True)
class History:
    """Points of COLUMNS, at first one per second."""

    points: list[Point] = field(default_factory=list)
    every: int = 1  # seconds between two points
    thinned: int = 0  # times; a page with points from before it gets all of them again
    _seen: int = 0

    def add(self, point: Point) -> None:
        """Add a point, unless it is between two of the points kept."""
        self._seen += 1
        if (self._seen - 1) % self.every:
            return
        self.points.append(point)
        if len(self.points) >= MAX_POINTS:
            del self.points[1::2]
            self.every *= 2
            self.thinned += 1


class LiveState:
    """The data source of a page: `update_facts`, `add` points, `changes_since` a cursor."""

    def __init__(self, facts: Mapping[str, Any] | None = None) -> None:
        self._always = dict(facts or {})
        self._run = time.time_ns()  # distinguishes runs, also across restarts of the process
        self._version = 0
        self.facts: dict[str, Any] = dict(self._always)
        self.now: dict[str, Any] = {}  # changes every second and is always sent, so keep it small
        self.history = History()

    def begin(self, **facts: Any) -> None:
        self._run += 1
        self._version = 0
        self.history = History()
        self.now = {}
        self.facts = self._always | facts

    def update_facts(self, **facts: Any) -> None:
        """Update facts; the version grows only if one of them has changed."""
        changed = {key: value for key, value in facts.items() if self.facts.get(key) != value}
        if changed:
            self._version += 1
            self.facts |= changed

    def add(self, point: Sequence[float | str | None], **now: Any) -> None:
        """Add the point of a second, in the order of COLUMNS, and the current values to show."""
        self.history.add(list(point))
        self.now = now

    def changes_since(self, cursor: str = "") -> dict[str, Any]:
        """Return the `facts` and `points` after `cursor` (`whole`: all points, replace them)."""
        history = self.history
        n_points = len(history.points)
        thinned, n_known, version = self._parse_cursor(cursor)
        whole = thinned != history.thinned
        points = history.points
        if not whole:
            points = history.points[min(n_known, n_points) :]
        update: dict[str, Any] = {
            "cursor": f"{self._run:x}-{history.thinned}-{n_points}-{self._version}",
            "now": self.now,
            "points": points,
            "whole": whole,
        }
        if version != self._version:
            names = {
                "columns": COLUMNS,
                "latencies": LATENCY_ROWS,
                "quantiles": [*QUANTILES],
            }
            update["facts"] = self.facts | names | {"charts": live_charts(self.facts)}
        return update

    def _parse_cursor(self, cursor: str) -> tuple[int, int, int]:
        """What a page has: times thinned, points and version; (-1, 0, -1): nothing of this run."""
        match = _CURSOR.fullmatch(cursor)
        if match is None or match["run"] != f"{self._run:x}":
            return -1, 0, -1
        return int(match["thinned"]), int(match["points"]), int(match["version"])


class State(NamedTuple):
    badge: str
    tone: str
    sentence: str


# The states of a run, each with a sentence about what comes next, in which the caller fills `{}`.
# `tone` is the color of the badge: good, bad, unsure or calm.
STATES: Final[dict[str, State]] = {
    "idle": State("idle", "calm", "Nothing is being sent. {}"),
    "starting": State("starting", "calm", "Probing {}. No load is sent yet."),
    "running": State("running", "calm", "Load is being sent to {}."),
    "stopping": State(
        "stopping", "calm", "Canceling requests in flight; then the results so far are computed."
    ),
    "computing": State(
        "computing", "calm", "The load is over and every record has arrived. Computing the results."
    ),
    "refused": State("refused", "bad", "Refused before any load was sent: {}"),
    "failed": State("failed", "bad", "{}"),
    # the final states, named as result.json's status; the answer itself comes from the report
    Status.found: State("knee found", "good", "{}"),
    Status.holds: State("holds", "good", "{}"),
    Status.not_reached: State("knee not reached", "good", "{}"),
    Status.slo_failed_at_min: State("SLO missed at the lowest level", "bad", "{}"),
    Status.met: State("SLO met", "good", "{}"),
    Status.missed: State("SLO missed", "bad", "{}"),
    Status.measured: State("measured", "calm", "{}"),
    Status.inconclusive: State("inconclusive", "unsure", "{}"),
    Status.target_failed: State("server failed", "bad", "{}"),
    Status.invalid: State("invalid", "bad", "{}"),
    Status.interrupted: State("interrupted", "unsure", "{}"),
    "ended": State("ended", "calm", "The test has ended. {}"),
}
# Of a drill, by the verdict of its worst expectation.
DRILLED: Final = {
    Verdict.met: ("drill passed", "good"),
    Verdict.inconclusive: ("inconclusive", "unsure"),
    Verdict.missed: ("drill failed", "bad"),
}
_NAMES: Final = tuple(STATES)
FINAL_STATES: Final = _NAMES[_NAMES.index("refused") :]


def state_facts(state: str, more: str = "") -> dict[str, Any]:
    row = STATES[state]
    over = state in FINAL_STATES or state == "idle"
    sentence = row.sentence.format(more).strip()
    return row._asdict() | {"state": state, "over": over, "sentence": sentence}
