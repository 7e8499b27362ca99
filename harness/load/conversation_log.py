"""From a log of conversations, a row per message, to own data: a request per assistant's turn.

Columns of the CSV or fields of the JSON lines: conversation_id, role and content; where there are
any, tools, tool_calls, tool_call_id, name, and timestamp (ms or ISO 8601).
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import orjson

from harness.errors import ConfigError, one_line
from harness.load.own_data import LONGEST_LINE, QUOTED, TOKENS_PER_BYTE, Row

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
OF_A_MESSAGE: Final = ("role", "content", "tool_calls", "tool_call_id", "name")


def convert(log: Path, out: Path) -> tuple[int, int, int]:
    """Write the requests; returns (messages, conversations, requests). Raises ConfigError.

    A request has the conversation up to the assistant's turn, is due when its last message came,
    and its answer may be about as long as the one in the log. The log is in memory as a whole.
    """
    talks: dict[str, list[Row]] = defaultdict(list)
    tools: dict[str, list[Row]] = {}
    came_ms: dict[str, float] = {}
    turns: list[tuple[float, str, int, Row]] = []
    n = 0
    try:
        for row in _rows(log):
            name, message = str(row.get("conversation_id") or ""), _message(row)
            tools[name] = row.get("tools") or tools.get(name, [])
            if message["role"] == "assistant" and talks[name]:
                told = f"{message.get('content', '')}{message.get('tool_calls', '')}".encode()
                tokens = max(math.ceil(len(told) * TOKENS_PER_BYTE), 1)
                rest = {"output_tokens": tokens} | ({"tools": tools[name]} if tools[name] else {})
                turns.append((came_ms[name], name, len(talks[name]), rest))
            talks[name].append(message)
            came_ms[name] = _ms(row.get("timestamp"))
            n += 1
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(
            f"message {n + 1:,} of {log} cannot be used ({one_line(str(error))}): expected "
            f"conversation_id, role (one of {', '.join(ROLES)}) and content in each."
        ) from None
    turns.sort(key=lambda turn: turn[0])
    timed = not any(math.isnan(at) for at, *_ in turns)
    with out.open("wb") as file:
        for at_ms, name, length, rest in turns:
            due = {"timestamp": at_ms - turns[0][0]} if timed else {}
            row = {"conversation_id": name, **due, "messages": talks[name][:length], **rest}
            file.write(orjson.dumps(row) + b"\n")
    return n, len(talks), len(turns)


def _rows(log: Path) -> Iterator[Row]:
    if log.suffix.lower() != ".csv":
        with log.open("rb") as lines:
            yield from map(orjson.loads, lines)
        return
    csv.field_size_limit(LONGEST_LINE)
    with log.open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            given = {name: text for name, text in row.items() if text}
            parsed = given.keys() & {"tools", "tool_calls"}
            yield given | {name: orjson.loads(given[name]) for name in parsed}


def _message(row: Row) -> Row:
    """In OpenAI's form. Raises ValueError."""
    told = row.get("content") is not None or row.get("tool_calls")
    if not row.get("conversation_id") or row.get("role") not in ROLES or not told:
        raise ValueError(f"found {one_line(str(row), QUOTED)}")
    return {name: row[name] for name in OF_A_MESSAGE if row.get(name) is not None}


def _ms(value: str | float | None) -> float:
    """NaN: not known."""
    try:
        return math.nan if value is None else float(value)
    except ValueError:
        return datetime.fromisoformat(str(value)).timestamp() * 1000
