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
from typing import Any, Final

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
    if path.suffix.lower() == ".csv" or "," in text.partition("\n")[0]:
        names = next(csv.reader(text.splitlines()[:1]), [])
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
        head = file.peek(len(BOM)).removeprefix(BOM).lstrip()
        if not head.startswith((b"{", b"[")):
            csv.field_size_limit(LONGEST_LINE)
            with path.open(newline="", encoding="utf-8-sig") as table:
                yield from csv.DictReader(table)
            return
        first = file.readline().removeprefix(BOM)
        if head.startswith(b"[") and _is_json(first) and not file.peek(1):
            only = loads(first)  # a single line: an array, or a conversation as a bare list
            yield from [only] if all(map(_is_turn, only)) else only
        elif head.startswith(b"[") and not _is_json(first):
            yield from loads(first + file.read())
        else:
            yield from (loads(line) for line in chain([first], file))


def loads(data: bytes) -> Any:
    """A JSON value. Halves of surrogates, which some data sets have, become U+FFFD.

    Raises ValueError.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if b"\\ud" not in data.lower():
            raise
        whole = _ESCAPED.sub(_without_halves, data)
        if whole == data:
            raise
        try:
            return orjson.loads(whole)
        except orjson.JSONDecodeError:
            raise error from None


# A backslash that is escaped, a pair of surrogates, or a half of one.
_ESCAPED: Final = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_HALF: Final = len(rb"\ud800")


def _without_halves(found: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if len(found[0]) == _HALF else found[0]


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


def bad(found: object, expected: str = "") -> ValueError:
    """What cannot be used, quoted in short."""
    more = f", expected {expected}" if expected else ""
    return ValueError(f"found {one_line(str(found), QUOTED)}{more}")


def made_of(kind: Kind, found: Iterable[Any], made: Made) -> None:
    """Add the rows of all records; `made.n` counts those that were read.

    Raises ValueError: what was found, and what was expected.
    """
    if kind is Kind.sharegpt:
        _of_sharegpt(found, made)
    elif kind is Kind.batch:
        _of_batch(found, made)
    else:
        _of_lengths(found, made, *LENGTHS_OF[kind])


def answer_tokens(text: str) -> int:
    """About the length of an answer in a data set."""
    return max(math.ceil(len(text.encode(errors="replace")) * TOKENS_PER_BYTE), 1)


# ShareGPT

_ROLES: Final = (
    dict.fromkeys(("human", "user", "prompter"), "user")
    | dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "claude", "model"), "assistant")
    | {"system": "system"}
)


def _of_sharegpt(found: Iterable[Any], made: Made) -> None:
    """A request for each answer, with what came before it; turns in the order of the file."""
    cut, silent = 0, 0
    odd = ""
    for record in found:
        turns, system, name = _talk(record)
        messages: list[Row] = []
        if system:
            messages.append({"role": "system", "content": system})
        before = len(made.rows)
        for turn in turns:
            pair = _turn(turn)
            if pair is None:  # what follows depends on it
                cut += 1
                odd = odd or one_line(str(turn), QUOTED)
                break
            for role, text in pair:
                if role == "assistant" and text and any(m["role"] == "user" for m in messages):
                    row = {"messages": list(messages), "output_tokens": answer_tokens(text)}
                    made.rows.append(({"conversation_id": name} if name else {}) | row)
                messages.append({"role": role, "content": text})
        silent += len(made.rows) == before
        made.n += 1
    made.note(cut, f"conversations end before a turn whose role or text is not known: {odd}")
    made.note(silent, "conversations have no answer to a user, so no request")


def _talk(record: Any) -> tuple[list[Any], str, str]:
    """(turns, system message, name). Raises ValueError."""
    if isinstance(record, list):
        return record, "", ""
    turns = None
    if isinstance(record, dict):
        turns = next((record[name] for name in _TALKS if name in record), None)
    if not isinstance(turns, list):
        raise bad(record, "`conversations`, a list")
    system = record.get("system") or record.get("system_prompt") or ""
    name = record.get("id") or ""
    return turns, system if isinstance(system, str) else "", str(name)


def _turn(turn: Any) -> list[tuple[str, str]] | None:
    """(role, text) of a turn, or of a question and its answer; None: it cannot be told."""
    if not isinstance(turn, dict):
        return None
    said = turn.get("from", turn.get("role"))
    text = turn.get("value", turn.get("content"))
    if said is None and {"human", "assistant"} <= turn.keys():
        pair = [("user", turn["human"]), ("assistant", turn["assistant"])]
        return pair if all(isinstance(one, str) for _, one in pair) else None
    role = _ROLES.get(str(said).strip().lower())
    if role is None or not isinstance(text, str):
        return None
    return [(role, text)]


# OpenAI batch

_LENGTHS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_KEPT: Final = {*_LENGTHS, "messages", "prompt", "tools", "model", "stream", "input"}


def _of_batch(found: Iterable[Any], made: Made) -> None:
    """A row for each request: what it says, and the length that it allows as the length."""
    dropped: dict[str, None] = {}
    without = 0
    for record in found:
        made.rows.append(row := _of_body(record))
        dropped |= dict.fromkeys(name for name in record["body"] if name not in _KEPT)
        without += "output_tokens" not in row
        made.n += 1
    made.note(without, "requests name no length of the answer: it is as long as the workload's")
    if dropped:
        names = ", ".join(dropped)
        made.notes.append(f"Left out: {names}; give what all requests share with --body.")


def _of_body(record: Any) -> Row:
    """Raises ValueError."""
    body = record.get("body") if isinstance(record, dict) else None
    if not isinstance(body, dict):
        raise bad(record, "`body`, an object")
    row = {name: body[name] for name in ("messages", "tools") if body.get(name)}
    asked = body.get("prompt") or body.get("input")
    if "messages" not in row and isinstance(asked, list) and body.get("input"):
        row["messages"] = asked
    elif "messages" not in row:
        if not isinstance(asked, str) or "embedding" in str(record.get("url")):
            raise bad(f"a request to {record.get('url')}", "messages or a prompt, a text")
        row["prompt"] = asked
    length = next((body[name] for name in _LENGTHS if body.get(name)), None)
    if type(length) is int:
        row["output_tokens"] = length
    return row


# Traces of lengths

# what a row is called, and its columns in small letters: time, prompt tokens, answer tokens
LENGTHS_OF: Final = {
    Kind.azure: ("timestamp", "contexttokens", "generatedtokens"),
    Kind.burstgpt: ("timestamp", "request tokens", "response tokens"),
}


def _of_lengths(found: Iterable[Any], made: Made, at: str, prompt: str, answer: str) -> None:
    """A row for each request of a trace, from the first on; seconds, or date and time, become ms.

    Rows without a prompt or an answer failed: they are left out.
    """
    empty, first_number = 0, math.nan
    for record in found:
        if not isinstance(record, dict):
            raise bad(record)
        row = {str(name).strip().lower(): value for name, value in record.items()}
        lengths = _whole(row, prompt), _whole(row, answer)
        if min(lengths) > 0:
            if math.isnan(first_number):
                first_number = number_of(row.get(at))
            due = at_ms(row.get(at), since_1970(first_number) or 1000.0)
            if math.isnan(due):
                raise bad(record, at)
            times = {"timestamp": due}
            made.rows.append(times | {"input_length": lengths[0], "output_length": lengths[1]})
        else:
            empty += 1
        made.n += 1
    early = sum(b["timestamp"] < a["timestamp"] for a, b in pairwise(made.rows))
    made.rows.sort(key=lambda row: float(row["timestamp"]))
    first = made.rows[0]["timestamp"] if made.rows else 0.0
    for row in made.rows:
        row["timestamp"] = round(row["timestamp"] - first, 3)
    made.note(empty, "rows have no prompt or no answer (they failed) and are left out")
    made.note(early, "rows are earlier than the one above them: all are in order of time now")


def _whole(row: Mapping[str, Any], name: str) -> int:
    """Raises ValueError."""
    text = str(row.get(name) or "").strip().replace(",", "")
    if not re.fullmatch(r"\d{1,9}(\.0*)?", text, re.ASCII):
        raise bad(f"{name} {text!r}", "a whole number")
    return int(text.partition(".")[0])


# Times

# (a number that is at least so large counts in this unit since 1970, ms in it)
_SINCE_1970: Final = ((1e17, 1e-6), (1e14, 1e-3), (1e11, 1.0), (1e9, 1e3))
UNIT_NAMES: Final = {1e-6: "nanoseconds", 1e-3: "microseconds", 1.0: "milliseconds", 1e3: "seconds"}


def since_1970(value: float) -> float:
    """The ms in a unit of a number that can only be a time since 1970; 0: it may be anything."""
    return next((unit for least, unit in _SINCE_1970 if value >= least), 0.0)


def number_of(value: Any) -> float:
    """A time that is a number; NaN: it is none.

    The first one of a file tells the unit of all: others may have grown as large as another unit's.
    """
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
        found = datetime.fromisoformat(str(value).strip())
        aware = found if found.tzinfo else found.replace(tzinfo=UTC)
        return aware.timestamp() * 1000
    if not math.isfinite(number):
        raise ValueError(f"found timestamp {value}, expected a time")
    return number * unit_ms
