"""What a live page is told of a run: facts that change now and then, and points against time.

A page asks once a second and says what it has (a cursor); it is told only what is new. Points are
bounded: when there are MOST, every second one goes and from then on every second one is taken, so
that a run of any length costs the same memory and the same bytes.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

from harness.measure.recent import KEYS, SHOWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST: Final = 1_800
COLUMNS: Final = (
    "t_s", "users", "tokens_per_s", "running", "waiting",
    *(f"{key}_{name}_ms" for key in KEYS for name in SHOWN),
)  # fmt: skip
Point = list[float | str | None]
_CURSOR: Final = re.compile(r"([0-9a-f]{1,20})-(\d{1,9})-(\d{1,9})-(\d{1,9})")


class History:
    """Points of COLUMNS, one a second at first."""

    def __init__(self, most: int = MOST) -> None:
        """Empty."""
        self.points: list[Point] = []
        self.every = 1  # seconds from one point to the next
        self.thinned = 0  # how often: a page whose points are older takes all of them anew
        self._most = most
        self._seen = 0

    def add(self, point: Point) -> None:
        """Take a point, or not, when points are further apart by now."""
        self._seen += 1
        if (self._seen - 1) % self.every:
            return
        self.points.append(point)
        if len(self.points) >= self._most:
            del self.points[1::2]
            self.every *= 2
            self.thinned += 1


class LiveState:
    """One page's source: `tell` facts, `add` points, and `news` since a cursor."""

    def __init__(self, facts: Mapping[str, Any] | None = None) -> None:
        """`facts` that hold before any run."""
        self._always = dict(facts or {})
        self._run = time.time_ns()  # tells runs apart, of this process and the one before it
        self._version = 0
        self.facts: dict[str, Any] = dict(self._always)
        self.now: dict[str, Any] = {}  # changes each second; sent always, so it stays small
        self.history = History()

    def begin(self, **facts: Any) -> None:
        """A new run: nothing of the one before stays."""
        self._run += 1
        self._version = 0
        self.history = History()
        self.now = {}
        self.facts = self._always | facts

    def tell(self, **facts: Any) -> None:
        """Facts that changed, in part or not at all."""
        changed = {key: value for key, value in facts.items() if self.facts.get(key) != value}
        if changed:
            self._version += 1
            self.facts |= changed

    def add(self, point: Sequence[float | str | None], **now: Any) -> None:
        """A second has passed: its point, in the order of COLUMNS, and what to show of now."""
        self.history.add(list(point))
        self.now = now

    def news(self, cursor: str = "") -> dict[str, Any]:
        """What a page that has `cursor` lacks: `facts` and `points` (all of them if `whole`)."""
        history = self.history
        match = _CURSOR.fullmatch(cursor)
        known = match is not None and match[1] == f"{self._run:x}"
        had = tuple(map(int, match.groups()[1:])) if known and match is not None else (-1, 0, -1)
        whole = had[0] != history.thinned
        place = len(history.points)
        told: dict[str, Any] = {
            "cursor": f"{self._run:x}-{history.thinned}-{place}-{self._version}",
            "now": self.now,
            "points": history.points if whole else history.points[min(had[1], place) :],
            "whole": whole,
        }
        if had[2] != self._version:
            told["facts"] = self.facts | {"columns": COLUMNS, "every_s": history.every}
        return told
