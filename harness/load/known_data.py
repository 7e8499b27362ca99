"""Data sets that people have: what a file looks like, and its rows as own data.

In: ShareGPT conversations (a JSON array, or a conversation per line), Azure's LLM inference traces
and BurstGPT (CSV), OpenAI batch files (JSON lines). Out: rows of own_data.py, timestamps in ms.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from harness.errors import one_line

Row = dict[str, Any]
LONGEST_LINE: Final = 64 << 20  # bytes
QUOTED: Final = 60  # characters that an error quotes
TOKENS_PER_BYTE: Final = 0.25  # of text, until a server has counted some
HEAD: Final = 1 << 20  # bytes that are looked at to tell what a file is
BOM: Final = b"\xef\xbb\xbf"


class Kind(Enum):
    """What a file may be; the value says it in a sentence."""

    own = "rows that --data reads"
    own_array = "a JSON array of rows that --data reads"
    log = "a log of conversations, a row per message"
    sharegpt = "ShareGPT conversations"
    azure = "a trace of Azure's LLM inference"
    burstgpt = "a BurstGPT trace"
    batch = "requests of an OpenAI batch"
    batch_results = "the results of an OpenAI batch, which hold no requests"
    instructions = "instructions with answers (Alpaca, Dolly)"
    gzip = "a gzip file; unpack it first, as with `gunzip -c FILE`"
    parquet = "a Parquet file; write it as JSON lines first, as with pandas' `to_json`"
    zip = "a zip file; unpack it first"
    utf16 = "text in UTF-16; write it as UTF-8 first, as with `iconv -f UTF-16 -t UTF-8 FILE`"
    lfs = "a pointer of Git LFS in place of the file; fetch it, as with `git lfs pull`"
    html = "a web page; download the file itself"
    array = "a JSON array of something else"
    table = "a CSV table with other columns"
    unknown = ""


CONVERTIBLE: Final = (Kind.log, Kind.sharegpt, Kind.azure, Kind.burstgpt, Kind.batch)
# Others of which it helps to be told what they are.
NAMED_KINDS: Final = (
    Kind.batch_results,
    Kind.instructions,
    Kind.gzip,
    Kind.parquet,
    Kind.zip,
    Kind.utf16,
    Kind.lfs,
    Kind.html,
    Kind.table,
)
_MAGIC: Final = (
    (b"\x1f\x8b", Kind.gzip),
    (b"PAR1", Kind.parquet),
    (b"PK\x03\x04", Kind.zip),
    (b"\xff\xfe", Kind.utf16),
    (b"\xfe\xff", Kind.utf16),
    (b"version https://git-lfs", Kind.lfs),
    (b"<", Kind.html),
)
# The names of fields or columns that tell a kind, in small letters; the first that fits counts.
_KEYS: Final = (
    ({"timestamp", "contexttokens", "generatedtokens"}, Kind.azure),
    ({"timestamp", "request tokens", "response tokens"}, Kind.burstgpt),
    ({"custom_id", "body"}, Kind.batch),
    ({"custom_id", "response"}, Kind.batch_results),
    ({"conversation_id", "role"}, Kind.log),
    ({"conversations"}, Kind.sharegpt),
    ({"conversation"}, Kind.sharegpt),
    ({"items", "id"}, Kind.sharegpt),
    ({"prompt"}, Kind.own),
    ({"messages"}, Kind.own),
    ({"input_length"}, Kind.own),
    ({"instruction"}, Kind.instructions),
)
_TALKS: Final = ("conversations", "conversation", "items")


def looks_like(path: Path) -> Kind:
    """What the beginning of a file looks like. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(HEAD)
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    text = head.decode("utf-8-sig", errors="replace").lstrip()
    if text.startswith("["):
        kind = _of_record(_first_record(text), otherwise=Kind.array)
        return Kind.own_array if kind is Kind.own else kind
    if text.startswith("{"):
        return _of_record(_first_record(text), otherwise=Kind.unknown)
    first_line, _, _ = text.partition("\n")
    if path.suffix.lower() == ".csv" or "," in first_line:
        first_lines = text.splitlines()[:1]
        names = next(csv.reader(first_lines), [])
        return _of_record(dict.fromkeys(names), otherwise=Kind.table)
    return Kind.unknown


def _first_record(text: str) -> object:
    """The first value of a JSON array, or the first of JSON lines; None: it cannot be read."""
    decoder = json.JSONDecoder()
    try:
        if text.startswith("["):
            inner = text[1:].lstrip()
            return decoder.raw_decode(inner)[0] if inner else None
        return decoder.raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None


def _of_record(record: object, otherwise: Kind) -> Kind:
    if isinstance(record, list) and record and all(map(_is_turn, record)):
        return Kind.sharegpt  # a list of lists
    if isinstance(record, dict):
        names = {str(name).strip().lower() for name in record}
        for wanted, kind in _KEYS:
            if wanted <= names:
                return kind
        if _is_turn(record):
            return Kind.sharegpt  # a line is a conversation as a bare list
    return otherwise


def _is_turn(value: object) -> bool:
    return isinstance(value, dict) and {"from", "value"} <= value.keys()


def records(path: Path) -> Iterator[Any]:
    """The values of a JSON array, of JSON lines, or the rows of a CSV.

    Raises OSError, ValueError, csv.Error.
    """
    with path.open("rb") as file:
        head = file.peek(len(BOM))
        head = head.removeprefix(BOM).lstrip()
        if not head.startswith((b"{", b"[")):
            yield from _csv_rows(path)
            return
        first = file.readline().removeprefix(BOM)
        if head.startswith(b"[") and _is_json(first) and not file.peek(1):
            only = loads(first)  # a single line: an array, or a conversation as a bare list
            if all(map(_is_turn, only)):
                yield only
            else:
                yield from only
        elif head.startswith(b"[") and not _is_json(first):
            yield from loads(first + file.read())
        else:
            yield from (loads(line) for line in chain([first], file))


def _csv_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_LINE)
    with path.open(newline="", encoding="utf-8-sig") as table:
        yield from csv.DictReader(table)


def loads(data: bytes) -> Any:
    """A JSON value. Halves of surrogates, which some data sets have, become U+FFFD.

    Raises ValueError.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if b"\\ud" not in data.lower():
            raise
        repaired = _ESCAPED.sub(_without_halves, data)
        if repaired == data:
            raise
        try:
            return orjson.loads(repaired)
        except orjson.JSONDecodeError:
            raise error from None


# A backslash that is escaped, a pair of surrogates, or a half of one.
_ESCAPED: Final = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_HALF: Final = len(rb"\ud800")


def _without_halves(escaped: re.Match[bytes]) -> bytes:
    if len(escaped[0]) == _HALF:
        return rb"\ufffd"
    return escaped[0]


def _is_json(line: bytes) -> bool:
    try:
        loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


@dataclass(slots=True)
class Made:
    """Rows of own data, and what has to be said of them."""

    of: str  # what a record is, in the singular
    rows: list[Row] = field(default_factory=list)
    n: int = 0  # records
    talks: int = 0  # conversations, where a record is a part of one
    notes: list[str] = field(default_factory=list)

    def note(self, count: int, text: str) -> None:
        if count:
            self.notes.append(f"{count:,} {text}.")


def bad(value: object, expected: str = "") -> ValueError:
    """What cannot be used, quoted in short."""
    more = f", expected {expected}" if expected else ""
    return ValueError(f"found {one_line(str(value), QUOTED)}{more}")


def made_of(kind: Kind, records: Iterable[Any], made: Made) -> None:
    """Add the rows of all records; `made.n` counts those that were read.

    Raises ValueError: what was found, and what was expected.
    """
    if kind is Kind.sharegpt:
        _of_sharegpt(records, made)
    elif kind is Kind.batch:
        _of_batch(records, made)
    else:
        _of_lengths(records, made, LENGTHS_OF[kind])


def answer_tokens(text: str) -> int:
    """About the length of an answer in a data set."""
    n_bytes = len(text.encode(errors="replace"))
    return max(math.ceil(n_bytes * TOKENS_PER_BYTE), 1)


# ShareGPT

_ROLES: Final = {
    "human": "user",
    "user": "user",
    "prompter": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "claude": "assistant",
    "model": "assistant",
    "system": "system",
}


def _of_sharegpt(records: Iterable[Any], made: Made) -> None:
    """A request for each answer, with what came before it; turns in the order of the file."""
    n_cut = 0
    n_silent = 0
    first_odd = ""
    for record in records:
        turns, system, name = _talk(record)
        messages, odd = _messages(turns, system)
        if odd is not None:
            n_cut += 1
            first_odd = first_odd or odd
        rows = _answers(messages, name)
        if not rows:
            n_silent += 1
        made.rows += rows
        made.n += 1
    made.note(
        n_cut, f"conversations end before a turn whose role or text is not known: {first_odd}"
    )
    made.note(n_silent, "conversations have no answer to a user, so no request")


def _messages(turns: list[Any], system: str) -> tuple[list[Row], str | None]:
    """The messages up to a turn that is not understood, as what follows depends on it; that turn.

    None: all were understood.
    """
    messages: list[Row] = []
    if system:
        messages.append({"role": "system", "content": system})
    for turn in turns:
        pair = _turn(turn)
        if pair is None:
            return messages, one_line(str(turn), QUOTED)
        messages += [{"role": role, "content": text} for role, text in pair]
    return messages, None


def _answers(messages: list[Row], name: str) -> list[Row]:
    """A request for each answer to a user; `name`: the conversation's, "" if it has none."""
    rows = []
    has_user = False
    for i, message in enumerate(messages):
        if message["role"] == "user":
            has_user = True
        elif message["role"] == "assistant" and message["content"] and has_user:
            row: Row = {"conversation_id": name} if name else {}
            row["messages"] = messages[:i]
            row["output_tokens"] = answer_tokens(message["content"])
            rows.append(row)
    return rows


def _talk(record: Any) -> tuple[list[Any], str, str]:
    """(turns, system message, name). Raises ValueError."""
    if isinstance(record, list):
        return record, "", ""
    turns = None
    if isinstance(record, dict):
        turns = next((record[name] for name in _TALKS if name in record), None)
    if not isinstance(turns, list):
        raise bad(record, "`conversations`, a list")
    system = record.get("system") or record.get("system_prompt")
    if not isinstance(system, str):
        system = ""
    name = str(record.get("id") or "")
    return turns, system, name


def _turn(turn: Any) -> list[tuple[str, str]] | None:
    """(role, text) of a turn, or of a question and its answer; None: it cannot be told."""
    if not isinstance(turn, dict):
        return None
    speaker = turn.get("from", turn.get("role"))
    text = turn.get("value", turn.get("content"))
    if speaker is None and {"human", "assistant"} <= turn.keys():
        question = turn["human"]
        answer = turn["assistant"]
        if not (isinstance(question, str) and isinstance(answer, str)):
            return None
        return [("user", question), ("assistant", answer)]
    role = _ROLES.get(str(speaker).strip().lower())
    if role is None or not isinstance(text, str):
        return None
    return [(role, text)]


# OpenAI batch

_LENGTHS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_KEPT: Final = {*_LENGTHS, "messages", "prompt", "tools", "model", "stream", "input"}


def _of_batch(records: Iterable[Any], made: Made) -> None:
    """A row for each request: what it says, and the length that it allows as the length."""
    dropped: dict[str, None] = {}  # names of fields, in the order of the file
    n_without = 0
    for record in records:
        row = _of_body(record)
        made.rows.append(row)
        for name in record["body"]:
            if name not in _KEPT:
                dropped[name] = None
        if "output_tokens" not in row:
            n_without += 1
        made.n += 1
    made.note(n_without, "requests name no length of the answer: it is as long as the workload's")
    if dropped:
        names = ", ".join(dropped)
        made.notes.append(f"Left out: {names}; give what all requests share with --body.")


def _of_body(record: Any) -> Row:
    """Raises ValueError."""
    body = record.get("body") if isinstance(record, dict) else None
    if not isinstance(body, dict):
        raise bad(record, "`body`, an object")
    row = {}
    for name in ("messages", "tools"):
        if body.get(name):
            row[name] = body[name]
    if "messages" not in row:
        prompt = body.get("prompt") or body.get("input")
        is_embedding = "embedding" in str(record.get("url"))
        if isinstance(prompt, list) and body.get("input"):
            row["messages"] = prompt
        elif isinstance(prompt, str) and not is_embedding:
            row["prompt"] = prompt
        else:
            raise bad(f"a request to {record.get('url')}", "messages or a prompt, a text")
    lengths = [body[name] for name in _LENGTHS if body.get(name)]
    length = next(iter(lengths), None)
    if type(length) is int:
        row["output_tokens"] = length
    return row


# Traces of lengths


class Columns(NamedTuple):
    """What the columns of a trace are called, in small letters."""

    time: str
    prompt_tokens: str
    answer_tokens: str


LENGTHS_OF: Final = {
    Kind.azure: Columns("timestamp", "contexttokens", "generatedtokens"),
    Kind.burstgpt: Columns("timestamp", "request tokens", "response tokens"),
}


def _of_lengths(records: Iterable[Any], made: Made, columns: Columns) -> None:
    """A row for each request of a trace, from the first on; seconds, or date and time, become ms.

    Rows without a prompt or an answer failed: they are left out.
    """
    n_empty = 0
    times = Times(default_unit_ms=1000.0)
    for record in records:
        if not isinstance(record, dict):
            raise bad(record)
        cells = {str(name).strip().lower(): value for name, value in record.items()}
        prompt = _whole(cells, columns.prompt_tokens)
        answer = _whole(cells, columns.answer_tokens)
        if min(prompt, answer) > 0:
            due_ms = times.at_ms(cells.get(columns.time))
            if math.isnan(due_ms):
                raise bad(record, columns.time)
            row = {"timestamp": due_ms, "input_length": prompt, "output_length": answer}
            made.rows.append(row)
        else:
            n_empty += 1
        made.n += 1
    n_early = _put_in_order(made.rows)
    made.note(n_empty, "rows have no prompt or no answer (they failed) and are left out")
    made.note(n_early, "rows are earlier than the one above them: all are in order of time now")


def _put_in_order(rows: list[Row]) -> int:
    """Sort by time, which begins at 0; how many rows were earlier than the one above them."""
    times_ms = [row["timestamp"] for row in rows]
    n_early: int = sum(time_ms < above_ms for above_ms, time_ms in pairwise(times_ms))
    rows.sort(key=lambda row: float(row["timestamp"]))
    first_ms = rows[0]["timestamp"] if rows else 0.0
    for row in rows:
        row["timestamp"] = round(row["timestamp"] - first_ms, 3)
    return n_early


def _whole(row: Mapping[str, Any], name: str) -> int:
    """Raises ValueError."""
    text = str(row.get(name) or "").strip()
    digits = text.replace(",", "")
    if not re.fullmatch(r"\d{1,9}(\.0*)?", digits, re.ASCII):
        raise bad(f"{name} {digits!r}", "a whole number")
    whole, _, _ = digits.partition(".")
    return int(whole)


# Times

# (a number that is at least so large counts in this unit since 1970, ms in it)
_SINCE_1970: Final = ((1e17, 1e-6), (1e14, 1e-3), (1e11, 1.0), (1e9, 1e3))
UNIT_NAMES: Final = {1e-6: "nanoseconds", 1e-3: "microseconds", 1.0: "milliseconds", 1e3: "seconds"}


class Times:
    """The times of one file.

    The first number tells the unit of all: others may have grown as large as another unit's.
    """

    def __init__(self, default_unit_ms: float) -> None:
        """`default_unit_ms`: of numbers that are not since 1970."""
        self._default_unit_ms = default_unit_ms
        self._has_number = False
        self.since_1970_ms = 0.0  # ms in the unit of numbers since 1970; 0: they may be anything

    def at_ms(self, value: str | float | None) -> float:
        """As `at_ms`, with the file's unit."""
        if not self._has_number:
            first = _number_of(value)
            self._has_number = not math.isnan(first)
            self.since_1970_ms = _since_1970(first)
        return at_ms(value, self.since_1970_ms or self._default_unit_ms)


def _since_1970(value: float) -> float:
    """The ms in a unit of a number that can only be a time since 1970; 0: it may be anything."""
    for least, unit_ms in _SINCE_1970:
        if value >= least:
            return unit_ms
    return 0.0


def _number_of(value: Any) -> float:
    """A time that is a number; NaN: it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def at_ms(value: str | float | None, unit_ms: float) -> float:
    """A time in ms: a number in `unit_ms`, or a date and time (UTC unless it says).

    NaN: none is given. Raises ValueError.
    """
    if value is None or value == "":
        return math.nan
    try:
        number = float(value)
    except (TypeError, ValueError):
        when = datetime.fromisoformat(str(value).strip())
        if not when.tzinfo:
            when = when.replace(tzinfo=UTC)
        return when.timestamp() * 1000
    if not math.isfinite(number):
        raise ValueError(f"found timestamp {value}, expected a time")
    return number * unit_ms
