"""From a log of conversations or another known data set to own data: a request per answer.

Of a log, columns of the CSV or fields of the JSON lines: conversation_id, role and content; where
there are any, tools, tool_calls, tool_call_id, name, and timestamp (ms, or a time since 1970 in
any unit, or ISO 8601). The other data sets are those of known_data.py.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from harness.errors import ConfigError, one_line
from harness.load.known_data import (
    CONVERTIBLE,
    UNIT_NAMES,
    Kind,
    Made,
    Row,
    Times,
    answer_tokens,
    bad,
    looks_like,
    made_of,
    records,
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
    made.n = 0
    for row in made.rows:
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
        likeness = kind.value or "nothing that is known here"
        expected = "; ".join(convertible.value for convertible in CONVERTIBLE)
        raise ConfigError(
            f"{log} looks like {likeness}: expected one of: {expected}; try docs/data.md."
        )
    return kind


def _may_be_log(log: Path) -> bool:
    """Whether its first record has a part of what a log's has: then that is what is said of it."""
    try:
        first = next(iter(records(log)), None)
    except (OSError, ValueError, csv.Error):
        return False
    if not isinstance(first, dict):
        return False
    return "conversation_id" in first or "role" in first


@dataclass(slots=True)
class _Talk:
    """A conversation, as far as the log was read."""

    name: str
    messages: list[Row] = field(default_factory=list)
    tools: list[Row] = field(default_factory=list)  # that the model may call
    latest_ms: float = math.nan  # when the latest message came; NaN: the log does not say


class _Answer(NamedTuple):
    """An assistant's turn: a request for it has the messages before it."""

    due_ms: float  # when the last of these came; NaN: the log does not say
    talk: _Talk
    n_before: int  # messages
    rest: Row  # further fields of the request


def _of_log(rows: Iterable[Any], made: Made) -> None:
    """Raises ValueError for a row that is no message."""
    talks: dict[str, _Talk] = {}
    answers: list[_Answer] = []
    times = Times(default_unit_ms=1.0)
    n_timed = 0
    for each in rows:
        row = _fields(each)
        message = _message(row)
        name = str(row.get("conversation_id"))
        talk = talks.setdefault(name, _Talk(name))
        if row.get("tools"):
            talk.tools = row["tools"]
        if message["role"] == "assistant" and talk.messages:
            answers.append(_answer(talk, message))
        talk.messages.append(message)
        talk.latest_ms = times.at_ms(row.get("timestamp"))
        if not math.isnan(talk.latest_ms):
            n_timed += 1
        made.n += 1
    made.talks = len(talks)
    if times.since_1970_ms:
        made.notes.append(f"Timestamps are taken as {UNIT_NAMES[times.since_1970_ms]} since 1970.")
    timed = not any(math.isnan(answer.due_ms) for answer in answers)
    if n_timed and not timed:
        made.note(made.n - n_timed, "messages have no timestamp: the times of all are left out")
    made.rows += _requests(answers, timed=timed)


def _answer(talk: _Talk, message: Row) -> _Answer:
    """What the assistant says next in this conversation."""
    text = f"{message.get('content', '')}{message.get('tool_calls', '')}"
    rest: Row = {"output_tokens": answer_tokens(text)}
    if talk.tools:
        rest["tools"] = talk.tools
    return _Answer(talk.latest_ms, talk, len(talk.messages), rest)


def _requests(answers: list[_Answer], *, timed: bool) -> list[Row]:
    """In the order of time, which begins at 0, if they are `timed`; else in that of the log."""
    if timed:
        answers = sorted(answers, key=lambda answer: answer.due_ms)
    requests = []
    for answer in answers:
        request: Row = {"conversation_id": answer.talk.name}
        if timed:
            request["timestamp"] = answer.due_ms - answers[0].due_ms
        request["messages"] = answer.talk.messages[: answer.n_before]
        requests.append(request | answer.rest)
    return requests


def _fields(row: Any) -> Row:
    """What a row says; in a CSV some columns are JSON. Raises ValueError."""
    if not isinstance(row, dict):
        raise bad(row)
    fields = {name: value for name, value in row.items() if value not in (None, "")}
    for name in ("tools", "tool_calls"):
        if isinstance(fields.get(name), str):
            fields[name] = orjson.loads(fields[name])
    return fields


def _message(row: Row) -> Row:
    """In OpenAI's form. Raises ValueError."""
    has_content = isinstance(row.get("content"), str | list)
    says_something = has_content or row.get("tool_calls")
    if "conversation_id" not in row or row.get("role") not in ROLES or not says_something:
        raise bad(row)
    return {name: row[name] for name in OF_A_MESSAGE if row.get(name) is not None}
