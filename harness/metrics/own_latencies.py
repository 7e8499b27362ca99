"""Whether a latency of an installed package keeps the rules that METRICS' own rows keep.

It is computed of made-up requests, as a level has them and as a run folder keeps them: thin tables
have three events of a request, and a latency on any other would differ from the live run's.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.errors import ConfigError
from harness.records.record_table import OK, RecordTable, keep_three_events
from harness.records.request_record import Outcome, RequestRecord
from harness.units import MS

if TYPE_CHECKING:
    from harness.core.arrays import Floats

COLUMNS: Final = ("ns", "lo_ns", "hi_ns", "at_ns", "row")  # of Observations
KEPT: Final = "the first event with a token, the answer's first, the last, and the request's end"


def check_latency(observe: Callable[[RecordTable], Any], whose: str) -> None:
    """Raises ConfigError that begins with `whose`, and says what `observe` does wrong."""
    table = _made_up_requests()
    seen = _columns(observe, table, whose)
    _columns(observe, RecordTable.from_records([]), whose)
    _check_values(seen, table, whose)
    try:
        thin = _columns(observe, keep_three_events(table), whose)
    except ConfigError:  # an index into events that are not there
        thin = {}
    if any(not np.array_equal(seen[name], thin.get(name, ())) for name in COLUMNS):
        raise ConfigError(
            f"{whose} is different where a request keeps three events, as in the tables of a run "
            f"folder: expected it to use {KEPT} alone; try ttft or e2e of harness.extend as a "
            "start."
        )


def _columns(
    observe: Callable[[RecordTable], Any], table: RecordTable, whose: str
) -> dict[str, Floats]:
    try:
        seen = observe(table)
        columns = {name: np.asarray(getattr(seen, name)) for name in COLUMNS}
    except Exception as error:
        raise ConfigError(
            f"{whose} fails for {len(table)} requests ({type(error).__name__}: {error}): expected "
            "an Observations for any table, an empty one too; try ttft of harness.extend as a "
            "start."
        ) from error
    shapes = {column.shape for column in columns.values()}
    if len(shapes) != 1 or columns["row"].ndim != 1:
        raise ConfigError(
            f"{whose} has columns of the shapes {sorted(shapes)}: expected one value in each for "
            "each observation; try dataclasses.replace on what ttft returns."
        )
    return columns


def _check_values(seen: dict[str, Floats], table: RecordTable, whose: str) -> None:
    rows = seen["row"]
    is_place = (rows >= 0) & (rows < len(table))
    if not is_place.all() or len(np.unique(rows)) < len(rows):
        raise ConfigError(
            f"{whose} has a request twice, or one that is not in the table: expected a row of the "
            "table in `row`, each once; try np.arange(len(table))."
        )
    ns = seen["ns"]
    if not ((seen["lo_ns"] <= ns) & (ns <= seen["hi_ns"]) & (ns >= 0)).all():
        raise ConfigError(
            f"{whose} has values that are below 0, unknown, or outside of their bounds: expected "
            "0 <= lo_ns <= ns <= hi_ns; leave a request out that has no value."
        )
    failed = np.flatnonzero((table.outcome != OK) & ~table.is_open)
    infinite = rows[np.isinf(ns)]
    if not np.isin(failed, infinite).all():
        raise ConfigError(
            f"{whose} has a finite value, or none, for a request that failed: expected +inf, or "
            "failing fast would look fast; try np.inf where table.outcome is a failure."
        )


def _made_up_requests() -> RecordTable:
    """Of each outcome some; with none to twenty events, uneven gaps, several tokens, reasoning."""
    draw = np.random.default_rng(1)
    records = []
    for number in range(120):
        outcome = [*Outcome][number % len(Outcome)]
        n_events = int(draw.integers(0, 20))
        sent_ns = int(draw.integers(1, 10_000)) * MS
        at_ns = sent_ns + np.cumsum(draw.integers(1, 50, n_events)) * MS
        lag_ns = draw.integers(0, 2, n_events) * (MS // 2)
        last_ns = int(at_ns[-1]) if n_events else sent_ns
        record = RequestRecord(
            worker=0,
            number=number,
            user=number % 5,
            sent_ns=sent_ns,
            done_ns=last_ns + 3 * MS,
            outcome=outcome,
            scheduled_ns=sent_ns - MS if number % 3 else -1,
            planned_tokens=20,
            prompt_tokens=int(draw.integers(1, 500)),
            output_tokens=n_events,
            answer_index=int(draw.integers(0, n_events)) if n_events else -1,
            at_ns=array("q", at_ns.tolist()),
            not_before_ns=array("q", (at_ns - lag_ns).tolist()),
            tokens=array("q", draw.integers(1, 4, n_events).tolist()),
        )
        records.append(record)
    return RecordTable.from_records(records)
