"""From a log of conversations or another known data set to own data: a request per answer.

Of a log, columns of the CSV or fields of the JSON lines: conversation_id, role and content; where
there are any, tools, tool_calls, tool_call_id, name, and timestamp (ms, or a time since 1970 in
any unit, or ISO 8601). The other data sets are those of known_data.py.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import orjson

from harness.errors import ConfigError, one_line
from harness.load.known_data import (
    CONVERTIBLE,
    UNIT_NAMES,
    Kind,
    Made,
    Row,
    answer_tokens,
    at_ms,
    bad,
    looks_like,
    made_of,
    number_of,
    records,
    since_1970,
)
from harness.load.own_data import parse_row

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
OF_A_MESSAGE: Final = ("role", "content", "tool_calls", "tool_call_id", "name")
# what a record of each is called
OF: Final = {
    Kind.log: "message",
    Kind.sharegpt: "ShareGPT conversation",
    Kind.azure: "Azure trace row",
    Kind.burstgpt: "BurstGPT row",
    Kind.batch: "batch request",
}
EXPECTED: Final = {
    Kind.log: f"conversation_id, role (one of {', '.join(ROLES)}) and content in each",
    Kind.sharegpt: "a list `conversations` of turns, each with `from` and `value`",
    Kind.azure: "TIMESTAMP, ContextTokens and GeneratedTokens in each",
    Kind.burstgpt: "Timestamp (seconds), Request tokens and Response tokens in each",
    Kind.batch: "a `body` with messages or a prompt in each",
}


def convert(log: Path, out: Path) -> Made:
    """Write the requests of `log` to `out`. Raises ConfigError.

    Of conversations a request has all up to the assistant's turn, is due when its last message
    came, and its answer may be about as long as the one in the log. All is in memory meanwhile.
    """
    kind = _kind(log)
    if out.exists() and out.samefile(log):
        raise ConfigError(
            f"--convert is {out}, the file that is read: expected another; try {out}.converted."
        )
    made = Made(OF[kind])
    try:
        if kind is Kind.log:
            _of_log(records(log), made)
        else:
            made_of(kind, records(log), made)
        if kind is Kind.batch:
            _check(made)
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(
            f"{made.of} {made.n + 1:,} of {log} cannot be used ({one_line(str(error))}): expected "
            f"{EXPECTED[kind]}."
        ) from None
    if not made.rows:
        raise ConfigError(
            f"{log} has no request among {made.n:,} {made.of}s: expected {EXPECTED[kind]}, and an "
            "answer to a user."
        )
    with out.open("wb") as file:
        for row in made.rows:
            file.write(orjson.dumps(row) + b"\n")
    return made


def _check(made: Made) -> None:
    """What a batch says may be anything. Raises ValueError: what --data would."""
    rows, made.n = made.rows, 0
    for row in rows:
        parse_row(orjson.dumps(row))
        made.n += 1


def _kind(log: Path) -> Kind:
    """Raises ConfigError where it is nothing that can be converted."""
    try:
        kind = looks_like(log)
    except OSError as error:
        raise ConfigError(
            f"{log} cannot be read ({error.strerror}): expected a log of conversations or another "
            "data set, as docs/data.md lists them."
        ) from None
    if kind in (Kind.unknown, Kind.own) and _may_be_log(log):
        return Kind.log
    if kind is Kind.own:
        raise ConfigError(f"{log} looks like {kind.value}: expected a log; try --data {log}.")
    if kind not in CONVERTIBLE:
        said = f"looks like {kind.value}" if kind.value else "looks like nothing that is known here"
        known = "; ".join(one.value for one in CONVERTIBLE)
        raise ConfigError(f"{log} {said}: expected one of: {known}; try docs/data.md.")
    return kind


def _may_be_log(log: Path) -> bool:
    """Whether its first record has a part of what a log's has: then that is what is said of it."""
    try:
        first = next(iter(records(log)), None)
    except (OSError, ValueError, csv.Error):
        return False
    return isinstance(first, dict) and bool(first.keys() & {"conversation_id", "role"})


def _of_log(rows: Iterable[Any], made: Made) -> None:
    """Raises ValueError for a row that is no message."""
    talks: dict[str, list[Row]] = defaultdict(list)
    tools: dict[str, list[Row]] = {}
    came: dict[str, float] = {}
    turns: list[tuple[float, str, int, Row]] = []
    first_number, n_timed = math.nan, 0
    for each in rows:
        row = _fields(each)
        name, message = str(row.get("conversation_id")), _message(row)
        tools[name] = row.get("tools") or tools.get(name, [])
        if message["role"] == "assistant" and talks[name]:
            told = f"{message.get('content', '')}{message.get('tool_calls', '')}"
            rest: Row = {"output_tokens": answer_tokens(told)}
            if tools[name]:
                rest["tools"] = tools[name]
            turns.append((came[name], name, len(talks[name]), rest))
        talks[name].append(message)
        if math.isnan(first_number):
            first_number = number_of(row.get("timestamp"))
        came[name] = at_ms(row.get("timestamp"), since_1970(first_number) or 1.0)
        n_timed += not math.isnan(came[name])
        made.n += 1
    made.talks = len(talks)
    if unit_ms := since_1970(first_number):
        made.notes.append(f"Timestamps are taken as {UNIT_NAMES[unit_ms]} since 1970.")
    timed = not any(math.isnan(at) for at, *_ in turns)
    if n_timed and not timed:
        made.note(made.n - n_timed, "messages have no timestamp: the times of all are left out")
    if timed:
        turns.sort(key=lambda turn: turn[0])
    for at, name, length, rest in turns:
        due = {"timestamp": at - turns[0][0]} if timed else {}
        made.rows.append({"conversation_id": name, **due, "messages": talks[name][:length], **rest})


def _fields(row: Any) -> Row:
    """What a row says; in a CSV some columns are JSON. Raises ValueError."""
    if not isinstance(row, dict):
        raise bad(row)
    given = {name: value for name, value in row.items() if value not in (None, "")}
    for name in ("tools", "tool_calls"):
        if isinstance(given.get(name), str):
            given[name] = orjson.loads(given[name])
    return given


def _message(row: Row) -> Row:
    """In OpenAI's form. Raises ValueError."""
    told = isinstance(row.get("content"), str | list) or row.get("tool_calls")
    if "conversation_id" not in row or row.get("role") not in ROLES or not told:
        raise bad(row)
    return {name: row[name] for name in OF_A_MESSAGE if row.get(name) is not None}
