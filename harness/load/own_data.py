"""Own data: requests from a file with a JSON object per line (docs/data.md).

    {"prompt": "...", "output_tokens": 64, "timestamp": 1500}
    {"messages": [...], "tools": [...]}
    {"timestamp": 1500, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}

The last is a row of a Mooncake trace: no text, but a hash for each block of 512 tokens. Timestamps
are in ms. Memory holds 32 bytes per row; a line is read again when it is due.
"""

from __future__ import annotations

import math
import os
import weakref
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from io import BufferedReader
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from harness.errors import ConfigError, one_line
from harness.load.lengths import FROM_DATA, Lengths
from harness.load.plan import UNCALIBRATED, RequestSpec, choose, room_of, seeded_random
from harness.load.tokens import Calibration, HashedDraws, prompt_ids, prompt_text
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.load.workloads import Workload

Row = dict[str, Any]
TRACE_BLOCK: Final = 512  # tokens of a Mooncake block
CACHE_BLOCK: Final = 16  # tokens of a KV block, vLLM's default
MOST_MS: Final = 1 << 50  # so that it is known in ns
LONGEST_LINE: Final = 64 << 20  # bytes
TOKENS_PER_BYTE: Final = 0.25  # of text, until a server has counted some
SAMPLE: Final = 16  # rows of which it counts the tokens
REMEMBERED_BLOCKS: Final = 1 << 21  # by `shared_tokens`: about 200 MB
NAMED, QUOTED = 3, 60  # bad lines that an error names, characters that it quotes


def _is_list(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(type(one) is kind for one in value)


# field -> whether its value can be used, what is expected
FIELDS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "prompt": (lambda value: isinstance(value, str) and value != "", "text"),
    "messages": (
        lambda value: _is_list(value, dict) and value and all("role" in one for one in value),
        "a list of messages, each with a role",
    ),
    "tools": (lambda value: _is_list(value, dict), "a list of objects"),
    "timestamp": (
        lambda value: type(value) in (int, float) and 0 <= value < MOST_MS,
        "ms, 0 or more",
    ),
    "hash_ids": (lambda value: _is_list(value, int), "a list of whole numbers"),
} | dict.fromkeys(
    ("output_tokens", "output_length", "input_length"),
    (lambda value: type(value) is int and 0 < value < 1 << 32, "a whole number from 1 up"),
)


def parse_row(line: bytes) -> Row:
    """The fields of a line that are not null. Raises ValueError: what was found and expected."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"found no JSON ({error.msg}), expected an object") from None
    row = {k: v for k, v in found.items() if v is not None} if isinstance(found, dict) else {}
    for name, (fits, expected) in FIELDS.items():
        if name in row and not fits(row[name]):
            value = one_line(repr(row[name]), QUOTED)
            raise ValueError(f"found {name} {value}, expected {expected}")
    if len(row.keys() & {"prompt", "messages", "input_length"}) != 1:
        value = one_line(line.decode(), QUOTED)
        raise ValueError(f"found {value}, expected one of prompt, messages and input_length")
    blocks, hashes = math.ceil(row.get("input_length", 0) / TRACE_BLOCK), row.get("hash_ids", ())
    if blocks and not (len(hashes) == blocks and "output_length" in row):
        raise ValueError(
            f"found {len(hashes)} hash_ids and output_length {row.get('output_length')}, expected "
            f"both, a hash for each {TRACE_BLOCK} tokens of input_length: {blocks}"
        )
    return row


def text_of(row: Row) -> bytes:
    """The text of a row: that of a longer conversation begins with it."""
    prompt: str = row.get("prompt", "")
    parts = (*row.get("tools", ()), *row.get("messages", ()))
    return prompt.encode() + b"".join(map(orjson.dumps, parts))


@dataclass(eq=False)
class DataSource:
    """The requests of a file: request k of a run is row k, modulo the number of rows.

    Reads and checks the whole file at once. Raises ConfigError that names the lines that are wrong.
    """

    path: str
    workload: Workload  # gives the API, and the length of the answer to rows without one
    calibration: Calibration = UNCALIBRATED
    seed: int = 1
    salt: str = ""  # prompts begin with it, and with the number of the pass over the rows
    timed: bool = False  # timestamps say when requests are due
    speed: float = 1.0  # they come so many times as fast
    repeat: bool = True  # after the last row the first comes again; else the run ends
    tokens_per_byte: float = TOKENS_PER_BYTE

    def __post_init__(self) -> None:
        self.n_messages = self.n_traces = 0  # rows of these kinds
        self.at_ms, self.outputs = array("d"), array("l")  # NaN, 0: not given
        self._starts = array("q", [0])  # of the lines in the file, and its end
        self._sizes = array("l")  # of prompts: tokens, or minus the bytes of a text
        try:
            with Path(self.path).open("rb") as file:
                self._file = os.dup(file.fileno())  # rows are read as long as this object lives
                weakref.finalize(self, os.close, self._file)
                os.lseek(self._file, 0, os.SEEK_CUR)  # refuses a pipe, which cannot be read again
                self._read(file)
        except OSError as error:
            raise ConfigError(
                f"--data is {self.path}, which cannot be read ({error.strerror}): expected a file "
                "with a JSON object per line, at this path on each machine that sends load."
            ) from None

    def _read(self, file: BufferedReader) -> None:
        n_wrong, wrong, line = 0, "", b""
        # A line that is too long is half an object: it is named, and the last that is read.
        while len(line) < LONGEST_LINE and (line := file.readline(LONGEST_LINE)):
            try:
                self._add(line)
            except ValueError as error:
                n_wrong += 1
                if n_wrong <= NAMED:
                    wrong += f"line {len(self._starts) - 1}: {error}; "
        if n_wrong or not self._sizes:
            what = f"{n_wrong:,} bad lines ({wrong[:-2]})" if wrong else "no lines"
            raise ConfigError(
                f"--data {self.path} has {what}: expected a JSON object per line; "
                'try {"prompt": "Hello", "output_tokens": 16}.'
            )

    def _add(self, line: bytes) -> None:
        self._starts.append(self._starts[-1] + len(line))
        row = parse_row(line)
        at = float(row.get("timestamp", math.nan))
        before = self.at_ms[-1] if self.at_ms else at
        if math.isnan(before) != math.isnan(at) or at < before:
            raise ValueError(
                f"found timestamp {at:g} after {before:g}, expected one in each line or in none, "
                "in the order of time"
            )
        self.n_messages += "messages" in row
        self.n_traces += "input_length" in row
        self.at_ms.append(at)
        self.outputs.append(row.get("output_tokens") or row.get("output_length", 0))
        self._sizes.append(row.get("input_length", 0) or -len(text_of(row)))

    def __len__(self) -> int:
        return len(self._sizes)

    def to_json(self) -> dict[str, Any]:
        """What another process needs to send the same rows; it reads the file itself."""
        names = ("path", "seed", "salt", "timed", "speed", "repeat", "tokens_per_byte")
        return {name: getattr(self, name) for name in names}

    @property
    def rate_per_s(self) -> float:
        """The mean rate of the timestamps; 0: there are none, or all are the same."""
        last_ns = self.offset_ns(len(self) - 1) if self.at_ms[0] >= 0 else 0
        return (len(self) - 1) * SECOND / last_ns if last_ns else 0.0

    def row(self, index: int) -> Row:
        start, end = self._starts[index : index + 2]
        return parse_row(os.pread(self._file, end - start, start))

    def as_workload(self, api: str | None) -> Workload:
        """The file's mean lengths, on an API that takes its rows. Raises ConfigError."""
        n_text = len(self) - self.n_messages - self.n_traces
        has = f"{self.n_messages:,} rows with messages and {n_text:,} with a prompt"
        if (self.n_messages and api not in (None, "chat")) or (n_text and api == "generate"):
            raise ConfigError(
                f"--api is {api} and --data has {has}: expected an API that takes them; "
                "try --api chat."
            )
        traces, n, work = self.n_traces == len(self), len(self), self.workload
        api = api or ("chat" if self.n_messages else "completions" if traces else work.api)
        sums = (sum(self.planned(index)[part] for index in range(n)) for part in (0, 1))
        prompt, output = (Lengths(FROM_DATA, math.ceil(tokens / n)) for tokens in sums)
        title, ids = f"{n:,} rows of {Path(self.path).name}", api in ("completions", "generate")
        work = replace(work, name="data", title=title, api=api, token_ids=traces and ids)
        work = replace(work, system_tokens=0, rows=(), think_ms=None, conversation=None)
        return replace(work, prompt=prompt, output=work.output if 0 in self.outputs else output)

    def learn(self, count_tokens: Callable[[str], int]) -> None:
        """How many tokens a byte of the texts has, from the server's count of some of them."""
        some = range(0, len(self), math.ceil(len(self) / SAMPLE))
        if text := "".join(text_of(self.row(i)).decode()[:2000] for i in some):
            self.tokens_per_byte = count_tokens(text) / len(text.encode())

    def planned(self, index: int) -> tuple[int, int]:
        """(prompt, output) tokens of row `index` as the file has them; of text, about."""
        size, output = self._sizes[index], self.outputs[index]
        output = output or self.workload.output.draw(seeded_random(self.seed, "data", index))
        return size if size > 0 else math.ceil(-size * self.tokens_per_byte), output

    def lengths(self, index: int, room: int) -> tuple[int, int]:
        """The same, clipped to `room` tokens (0: not known).

        The prompt loses its end; an answer that takes more than half of the room is shortened.
        """
        prompt, output = self.planned(index)
        if room and prompt + output > room:
            output = min(output, max(room - prompt, room // 2, 1))
            prompt = max(min(prompt, room - output), 1)
        return prompt, output

    def n_clipped(self, max_model_len: int) -> int:
        """How many rows are clipped to a model's context."""
        room = room_of(replace(self.workload, max_model_len=max_model_len))
        return sum(self.planned(i) != self.lengths(i, room) for i in range(len(self)))

    def spec(self, number: int) -> RequestSpec:
        """Request `number` of the run, whichever process sends it."""
        models = self.workload.models
        model = choose(models, self.seed, "data", number, "model") if models else ""
        return self._of_row(*divmod(number, len(self)))._replace(model=model)

    def _of_row(self, turn: int, index: int) -> RequestSpec:
        row, (tokens, output) = self.row(index), self.lengths(index, room_of(self.workload))
        salt = f"{self.salt}/{turn} " if self.salt else ""
        if "input_length" in row:
            return self._of_hashes([f"{salt}{one}" for one in row["hash_ids"]], tokens, output)
        messages = row.get("messages") or [{"content": row["prompt"]}]
        texts = [one for one in messages if isinstance(one.get("content"), str)]
        drop = math.ceil((self.planned(index)[0] - tokens) / self.tokens_per_byte)
        if drop and texts:  # the longest has the most to lose
            longest = max(texts, key=lambda one: len(one["content"]))
            data = longest["content"].encode()
            longest["content"] = data[: max(len(data) - drop, 1)].decode(errors="ignore")
        if salt and texts:
            texts[0]["content"] = salt + texts[0]["content"]
        if "prompt" in row:
            return RequestSpec(messages[0]["content"], tokens, output)
        tools = tuple(row.get("tools", ()))
        return RequestSpec("", tokens, output, messages=tuple(messages), tools=tools)

    def _of_hashes(self, blocks: list[str], tokens: int, output: int) -> RequestSpec:
        """Equal hashes are equal blocks; of the last, which may be shorter, equal beginnings."""
        if self.workload.token_ids:
            ids = tuple(islice(chain.from_iterable(map(_block_ids, blocks)), tokens))
            return RequestSpec("", tokens, output, token_ids=ids)
        size = math.ceil(TRACE_BLOCK / self.calibration.per_word)
        words = " ".join(prompt_text(size, HashedDraws(one)) for one in blocks).split(" ")
        return RequestSpec(" ".join(words[: self.calibration.words(tokens)]), tokens, output)

    def offset_ns(self, number: int) -> int:
        """When request `number` is due; the first row comes again one mean gap after the last."""
        (turn, index), at = divmod(number, len(self)), self.at_ms
        pass_ms = (at[-1] - at[0]) * len(self) / max(len(self) - 1, 1)
        return round((turn * pass_ms + at[index] - at[0]) * MS / self.speed)

    def due_ns(self, planned: Iterator[int]) -> Iterator[int]:
        """When each request is due: as `planned`, or as timestamps say; no more if data ends."""
        offsets = map(self.offset_ns, count()) if self.timed else planned
        return offsets if self.repeat else islice(offsets, len(self))

    def shared_tokens(self) -> Iterator[int]:
        """By row, the tokens that a cache which evicts nothing has from earlier rows.

        Whole KV blocks from the start and never the last token, as vLLM does it. Text is cut where
        the blocks are expected to end. Blocks beyond REMEMBERED_BLOCKS hit nothing.
        """
        seen: dict[int, int] = {}  # a block with all before it -> its tokens
        size = CACHE_BLOCK / self.tokens_per_byte
        for index, (tokens, _) in enumerate(map(self.planned, range(len(self)))):
            row, key, shared, hit = self.row(index), 0, 0, True
            step, text = (TRACE_BLOCK, b"") if "hash_ids" in row else (CACHE_BLOCK, text_of(row))
            for number, start in enumerate(range(0, tokens, step)):
                piece = slice(round(number * size), round((number + 1) * size))
                key = hash((key, text[piece] if text else row["hash_ids"][number]))
                length, known = min(step, tokens - start), seen.get(key, 0)
                shared += min(known, length) * hit
                hit = hit and known >= length
                if known or len(seen) < REMEMBERED_BLOCKS:
                    seen[key] = max(known, length)
            yield min(shared, tokens - 1) // CACHE_BLOCK * CACHE_BLOCK


@lru_cache(maxsize=1024)
def _block_ids(key: str) -> tuple[int, ...]:
    return prompt_ids(TRACE_BLOCK, HashedDraws(key))
