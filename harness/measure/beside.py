"""Our figures and those that a tool of COMPAT would give of the same requests, row by row.

In: what was recorded and the windows of one level; out: plain JSON rows, latencies in ms. Theirs
are of the requests that were sent in the windows and ended well (gaps and throughput: that ended in
them).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.measure.compat import STEP
from harness.measure.figures import sample_of, say_ms, spans_of
from harness.measure.gaps import Gaps, count_gaps
from harness.measure.metrics import METRICS
from harness.measure.table import OK
from harness.measure.theirs import (
    COMPARED,
    ChunkGaps,
    Values,
    joined,
    rate,
    statistic,
    typical_connect_ns,
    values,
)
from harness.measure.walk import Arrivals
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.compat import Definition, Tool
    from harness.measure.evidence import Window
    from harness.measure.figures import Figures
    from harness.measure.gaps import Twice
    from harness.measure.recorded import Recorded
    from harness.measure.table import RecordTable

Json = dict[str, Any]
OLD_RECORDS: Final = (
    "these records do not say when chunks without text came: the first and the last token stand "
    "for the first and the last chunk"
)
ALIKE: Final = 5e-4  # relative: what three digits hardly show is no difference


class LevelTokens:
    """What the rows of a level need of each token: our gaps and arrivals, and the tool's gaps."""

    def __init__(self, tool: Tool, table: RecordTable, windows: Sequence[tuple[int, int]]) -> None:
        """Nothing counted yet."""
        self.ours = Gaps(table, spans_of(table, windows))
        self.arrived = [Arrivals(*window) for window in windows]
        self.theirs = {
            d: ChunkGaps(windows, empty_ones=d.start == "first chunk")
            for d in tool.definitions
            if d.per == "gap"
        }

    @staticmethod
    def count(recorded: Recorded, levels: Sequence[LevelTokens]) -> None:
        """All levels at a time."""
        twice: list[Twice] = [level.ours for level in levels]
        for level in levels:
            twice += level.theirs.values()
        count_gaps(recorded, twice, [arrived for level in levels for arrived in level.arrived])


def beside(tool: Tool, recorded: Recorded, windows: Sequence[Window]) -> Json:
    """result.json's `compat` entry of a tool: its version, and the rows of each level.

    `levels` are by users; each has `requests`, the number of those that both columns look at, and
    `left_out`, of those sent while the level was reached and warmed up: the tool would count them.
    """
    table = recorded.table
    by_users: dict[int, list[Window]] = {}
    for window in windows:
        by_users.setdefault(window.users, []).append(window)
    tokens = {
        users: LevelTokens(tool, table, [(w.settled_ns, w.end_ns) for w in held])
        for users, held in sorted(by_users.items())
    }
    LevelTokens.count(recorded, list(tokens.values()))
    return {
        "title": tool.title,
        "version": tool.version,
        "note": tool.note,
        "levels": [_level(tool, table, users, by_users[users], t) for users, t in tokens.items()],
    }


def _level(
    tool: Tool, table: RecordTable, users: int, windows: Sequence[Window], tokens: LevelTokens
) -> Json:
    measured = [(w.settled_ns, w.end_ns) for w in windows]
    begun = [(w.chosen_ns, w.settled_ns - 1) for w in windows]
    old = bool((table.events_before[table.outcome == OK] < 0).any())
    chunks = any("chunk" in d.start + d.end for d in tool.definitions)
    return {
        "users": users,
        "requests": sum(int(_sent_in(table, *w).sum()) for w in measured),
        "left_out": sum(int(_sent_in(table, *w).sum()) for w in begun),
        "approximate": OLD_RECORDS if old and chunks else "",
        "rows": rows(tool, table, measured, tokens),
    }


def rows(
    tool: Tool,
    recorded: Recorded,
    windows: Sequence[tuple[int, int]],
    tokens: LevelTokens | None = None,
) -> list[Json]:
    """One row for each figure: metric, name, statistic, unit, ours, theirs, why.

    `tokens`: where they were counted already.
    """
    table = recorded.table
    if tokens is None:
        tokens = LevelTokens(tool, table, windows)
        LevelTokens.count(recorded, [tokens])
    well = table.select(table.outcome == OK)
    parts = [well.select(_sent_in(well, *w)) for w in windows]
    connect_ns = typical_connect_ns(table)
    made: list[Json] = []
    for d in tool.definitions:
        metric = METRICS[d.key]
        head = {"metric": d.key, "name": d.name, "unit": metric.unit}
        if d.per == "second":
            ours = _our_rate(d.key, table, windows, tokens.arrived)
            made.append(head | {"statistic": "", **_pair(ours, rate(d.key, well, windows), d.why)})
            continue
        gaps = d.key == "itl"
        mine = tokens.ours if gaps else sample_of(table, d.key, spans_of(table, windows))
        seen = joined([values(d, part, connect_ns) for part in parts] if d.per != "gap" else [])
        for name, q in COMPARED.items():
            told = tokens.theirs[d].statistic(q) if d.per == "gap" else _theirs(seen, q, tool)
            why = _why(d, tool, mine, q)
            pair = _pair(_our_statistic(mine, q), say_ms(told), why)
            made.append(head | {"statistic": name, **pair})
    return made


def _theirs(seen: Values, q: float, tool: Tool) -> float:
    return statistic(seen, q, tool.quantile)


def _pair(ours: Any, theirs: Any, why: str) -> Json:
    numbers = isinstance(ours, float) and isinstance(theirs, float)
    alike = numbers and math.isclose(ours, theirs, rel_tol=ALIKE)
    return {"ours": ours, "theirs": theirs, "why": "" if alike else why}


def _why(d: Definition, tool: Tool, ours: Figures, q: float) -> str:
    """The definition's phrase, unless ours is missing or infinite for a reason of its own."""
    if q > 0 and math.isinf(ours.quantile(q)):
        return "failed requests are infinite in ours and left out of theirs"
    if q > 0 and not d.why:
        step = tool.quantile == STEP
        return (
            f"theirs is {'the value before' if step else 'between two values'}, ours the upper one"
        )
    return d.why or "failed requests are left out of theirs"


def _sent_in(table: RecordTable, start: int, end: int) -> NDArray[np.bool_]:
    return np.asarray((table.sent_ns >= start) & (table.sent_ns <= end))


# ours, as result.json has it


def _our_statistic(ours: Figures, q: float) -> float | str | None:
    return say_ms(ours.quantile(q) if q > 0 else ours.mean_ns)


def _our_rate(
    key: str, table: RecordTable, windows: Sequence[tuple[int, int]], arrived: Sequence[Arrivals]
) -> float | None:
    span = sum(end - start for start, end in windows)
    if key == "requests_per_s":
        ended = [(table.done_ns >= start) & (table.done_ns <= end) for start, end in windows]
        count = sum(int((inside & (table.outcome == OK)).sum()) for inside in ended)
    else:
        count = sum(one.tokens for one in arrived)
    return round(count * SECOND / span, 4) if span else None
