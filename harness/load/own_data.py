"""Own data: requests from a file with a JSON object per line (docs/data.md).

    {"prompt": "...", "output_tokens": 64, "timestamp": 1500}
    {"messages": [...], "tools": [...]}
    {"timestamp": 1500, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}

The last is a row of a Mooncake trace: no text, but a hash for each block of 512 tokens. Without
hashes nothing of its prompt is shared. Timestamps are in ms. Memory holds 33 bytes per row; a line
is read again when it is due.
"""

from __future__ import annotations

import math
import os
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from io import BufferedReader
from itertools import chain, count, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from harness.errors import ConfigError, one_line
from harness.load.known_data import (
    BOM,
    CONVERTIBLE,
    LONGEST_LINE,
    NAMED_KINDS,
    QUOTED,
    TOKENS_PER_BYTE,
    Kind,
    Row,
    looks_like,
)
from harness.load.lengths import FROM_DATA, Lengths
from harness.load.plan import UNCALIBRATED, RequestSpec, choose, room_of, seeded_random
from harness.load.tokens import Calibration, HashedDraws, prompt_ids, prompt_text
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.load.workloads import Workload

TRACE_BLOCK: Final = 512  # tokens of a Mooncake block
OTHER_BLOCKS: Final = (16, 32, 64, 128, 256)  # tokens of a block in other traces
CACHE_BLOCK: Final = 16  # tokens of a KV block, vLLM's default
MOST_MS: Final = 1 << 50  # so that it is known in ns
# a first timestamp between these is no ms that anybody means
SECONDS_FROM: Final = 10**9
SECONDS_TO: Final = 10**11
SAMPLE: Final = 16  # rows of which it counts the tokens
REMEMBERED_BLOCKS: Final = 1 << 21  # by `shared_tokens`: about 200 MB
NAMED: Final = 3  # bad lines that an error names


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_messages(value: Any) -> bool:
    if not _is_objects(value) or not value:
        return False
    return all("role" in message for message in value)


def _is_objects(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is dict for item in value)


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < MOST_MS


def _is_hashes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _is_length(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 32


# field -> whether its value can be used, what is expected
FIELDS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "prompt": (_is_prompt, "text"),
    "messages": (_is_messages, "a list of messages, each with a role"),
    "tools": (_is_objects, "a list of objects"),
    "timestamp": (_is_time, "ms, 0 or more"),
    "hash_ids": (_is_hashes, "a list of whole numbers"),
    "output_tokens": (_is_length, "a whole number from 1 up"),
    "output_length": (_is_length, "a whole number from 1 up"),
    "input_length": (_is_length, "a whole number from 1 up"),
}


def parse_row(line: bytes) -> Row:
    """The fields of a line that are not null. Raises ValueError: what was found and expected."""
    try:
        parsed = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"found no JSON ({error.msg}), expected an object") from None
    row: Row = {}
    if isinstance(parsed, dict):
        row = {name: value for name, value in parsed.items() if value is not None}
    for name, (fits, expected) in FIELDS.items():
        if name in row and not fits(row[name]):
            value = one_line(repr(row[name]), QUOTED)
            raise ValueError(f"found {name} {value}, expected {expected}")
    given = row.keys() & {"prompt", "messages", "input_length"}
    if len(given) != 1:
        value = one_line(line.decode(), QUOTED)
        raise ValueError(f"found {value}, expected one of prompt, messages and input_length")
    if "input_length" in row:
        _check_trace_row(row)
    return row


def _check_trace_row(row: Row) -> None:
    """Raises ValueError."""
    n_blocks = math.ceil(row["input_length"] / TRACE_BLOCK)
    hashes = row.get("hash_ids")
    all_hashed = hashes is None or len(hashes) == n_blocks
    if not all_hashed or "output_length" not in row:
        n_hashes = len(hashes or ())
        raise ValueError(
            f"found {n_hashes} hash_ids and output_length {row.get('output_length')}, expected "
            f"both, a hash for each {TRACE_BLOCK} tokens of input_length: {n_blocks}"
            f"{_other_block(row['input_length'], n_hashes)}"
        )


def _other_block(tokens: int, n_hashes: int) -> str:
    """Of a trace with smaller blocks: which they are; "" where no size fits."""
    for size in OTHER_BLOCKS:
        if math.ceil(tokens / size) == n_hashes:
            return f"; these would be blocks of {size} tokens, which are not read"
    return ""


def text_of(row: Row) -> bytes:
    """The text of a row: that of a longer conversation begins with it.

    What is no text, such as a picture, stands there as a short digest.
    """
    prompt: str = row.get("prompt", "")
    messages = map(_in_short, row.get("messages", ()))
    objects = (*row.get("tools", ()), *messages)
    return prompt.encode() + b"".join(map(orjson.dumps, objects))


def _in_short(message: Row) -> Row:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [part if _is_text(part) else _digest(part) for part in content]
    return {**message, "content": parts}


def _digest(part: object) -> str:
    return sha256(orjson.dumps(part)).hexdigest()


def _is_text(part: object) -> bool:
    """Whether a part of a message's content is text, as the chat and responses APIs have it."""
    if isinstance(part, dict):
        part = part.get("text")
    return isinstance(part, str)


def is_unsized(row: Row) -> bool:
    """Whether nobody but the server can know its length: it has a picture, sound or a file."""
    for message in row.get("messages", ()):
        content = message.get("content")
        if isinstance(content, list) and not all(map(_is_text, content)):
            return True
    return False


def _instead(path: Path) -> str:
    """What to try with a file that --data cannot read."""
    kind = looks_like(path)
    if kind in CONVERTIBLE:
        return (
            f"it looks like {kind.value}: try `vllm-harness data {path} --convert OUT.jsonl` and "
            "--data OUT.jsonl"
        )
    if kind is Kind.own_array:
        return f"it is a JSON array: try `jq -c '.[]' {path} > OUT.jsonl` and --data OUT.jsonl"
    if kind in NAMED_KINDS:
        return f"it looks like {kind.value}"
    return 'try {"prompt": "Hello", "output_tokens": 16}'


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
        # rows of these kinds
        self.n_messages = 0
        self.n_traces = 0
        self.n_hashed = 0
        self.at_ms = array("d")  # NaN: not given
        self.outputs = array("l")  # 0: not given
        self._starts = array("q", [0])  # of the lines in the file, and its end
        self._sizes = array("l")  # of prompts: tokens, or minus the bytes of a text
        self._unsized = bytearray()  # 1: nobody knows this row's length
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
        n_wrong = 0
        wrong = ""  # the first ones, with what is wrong
        line = b""
        if file.peek(len(BOM)).startswith(BOM):
            self._starts[0] = len(file.read(len(BOM)))
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
                f"{_instead(Path(self.path))}."
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
        if not self.at_ms and SECONDS_FROM <= at < SECONDS_TO:
            raise ValueError(
                f"found timestamp {at:.15g}, which looks like seconds since 1970, expected ms: try "
                "1000 times as much"
            )
        self.n_messages += int("messages" in row)
        self.n_traces += int("input_length" in row)
        self.n_hashed += int("input_length" in row and "hash_ids" in row)
        self._unsized.append(is_unsized(row))
        self.at_ms.append(at)
        self.outputs.append(row.get("output_tokens") or row.get("output_length", 0))
        if "input_length" in row:
            self._sizes.append(row["input_length"])
        else:
            self._sizes.append(-len(text_of(row)))

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def n_unsized(self) -> int:
        """Rows whose length nobody but the server can know."""
        return sum(self._unsized)

    def to_json(self) -> dict[str, Any]:
        """What another process needs to send the same rows; it reads the file itself."""
        names = ("path", "seed", "salt", "timed", "speed", "repeat", "tokens_per_byte")
        return {name: getattr(self, name) for name in names}

    @property
    def rate_per_s(self) -> float:
        """The mean rate of the timestamps; 0: there are none, or all are the same."""
        has_times = self.at_ms[0] >= 0
        if not has_times:
            return 0.0
        last = len(self) - 1
        last_ns = self.offset_ns(last)
        return last * SECOND / last_ns if last_ns else 0.0

    def row(self, index: int) -> Row:
        start, end = self._starts[index : index + 2]
        return parse_row(os.pread(self._file, end - start, start))

    def as_workload(self, api: str | None) -> Workload:
        """The file's mean lengths, on an API that takes its rows. Raises ConfigError."""
        n_text = len(self) - self.n_messages - self.n_traces
        takes_messages = api in (None, "chat")
        takes_text = api != "generate"
        if (self.n_messages and not takes_messages) or (n_text and not takes_text):
            raise ConfigError(
                f"--api is {api} and --data has {self.n_messages:,} rows with messages and "
                f"{n_text:,} with a prompt: expected an API that takes them; try --api chat."
            )
        only_traces = self.n_traces == len(self)
        api = api or self._best_api(only_traces=only_traces)
        prompt, output = self._mean_lengths()
        if 0 in self.outputs:  # a row without one has the workload's
            output = self.workload.output
        return replace(
            self.workload,
            name="data",
            title=f"{len(self):,} rows of {Path(self.path).name}",
            api=api,
            prompt=prompt,
            output=output,
            token_ids=only_traces and api in ("completions", "generate"),
            system_tokens=0,
            rows=(),
            think_ms=None,
            conversation=None,
        )

    def _best_api(self, *, only_traces: bool) -> str:
        if self.n_messages:
            return "chat"
        if only_traces:
            return "completions"
        return self.workload.api

    def _mean_lengths(self) -> tuple[Lengths, Lengths]:
        """Of prompts and of answers."""
        n = len(self)
        prompt_tokens = 0
        output_tokens = 0
        for index in range(n):
            prompt, output = self.planned(index)
            prompt_tokens += prompt
            output_tokens += output
        mean_prompt = math.ceil(prompt_tokens / n)
        mean_output = math.ceil(output_tokens / n)
        return Lengths(FROM_DATA, mean_prompt), Lengths(FROM_DATA, mean_output)

    def learn(self, count_tokens: Callable[[str], int]) -> None:
        """How many tokens a byte of the texts has, from the server's count of some of them."""
        step = math.ceil(len(self) / SAMPLE)
        text = ""
        for index in range(0, len(self), step):
            text += text_of(self.row(index)).decode()[:2000]
        if text:
            self.tokens_per_byte = count_tokens(text) / len(text.encode())

    def planned(self, index: int) -> tuple[int, int]:
        """(prompt, output) tokens of row `index` as the file has them; of text, about."""
        prompt = self._sizes[index]
        if prompt <= 0:  # a text: minus its bytes
            prompt = math.ceil(-prompt * self.tokens_per_byte)
        output = self.outputs[index]
        if not output:
            rng = seeded_random(self.seed, "data", index)
            output = self.workload.output.draw(rng)
        return prompt, output

    def lengths(self, index: int, room: int) -> tuple[int, int]:
        """The same, clipped to `room` tokens (0: not known).

        The prompt loses its end; an answer that takes more than half of the room is shortened. A
        row whose length nobody knows stays as it is.
        """
        prompt, output = self.planned(index)
        if room and prompt + output > room and not self._unsized[index]:
            output = min(output, max(room - prompt, room // 2, 1))
            prompt = max(min(prompt, room - output), 1)
        return prompt, output

    def n_clipped(self, max_model_len: int) -> int:
        """How many rows are clipped to a model's context."""
        room = room_of(replace(self.workload, max_model_len=max_model_len))
        rows = range(len(self))
        return sum(self.planned(row) != self.lengths(row, room) for row in rows)

    def spec(self, number: int) -> RequestSpec:
        """Request `number` of the run, whichever process sends it."""
        models = self.workload.models
        model = choose(models, self.seed, "data", number, "model") if models else ""
        turn, index = divmod(number, len(self))
        return self._of_row(turn, index)._replace(model=model)

    def _of_row(self, turn: int, index: int) -> RequestSpec:
        """A row in pass `turn` over all of them."""
        row = self.row(index)
        tokens, output = self.lengths(index, room_of(self.workload))
        salt = f"{self.salt}/{turn} " if self.salt else ""
        if "input_length" in row:
            blocks = row.get("hash_ids")
            if blocks is None:  # of its own, in each pass and with each seed
                n = math.ceil(row["input_length"] / TRACE_BLOCK)
                blocks = [f"{self.seed}/{turn}/{index}/{number}" for number in range(n)]
            return self._of_hashes([f"{salt}{block}" for block in blocks], tokens, output)
        messages = row.get("messages") or [{"content": row["prompt"]}]
        planned_tokens, _ = self.planned(index)
        cut_bytes = math.ceil((planned_tokens - tokens) / self.tokens_per_byte)
        _cut_and_salt(messages, cut_bytes, salt)
        if "prompt" in row:
            return RequestSpec(messages[0]["content"], tokens, output)
        tools = tuple(row.get("tools", ()))
        return RequestSpec("", tokens, output, messages=tuple(messages), tools=tools)

    def _of_hashes(self, blocks: list[str], tokens: int, output: int) -> RequestSpec:
        """Equal hashes are equal blocks; of the last, which may be shorter, equal beginnings."""
        if self.workload.token_ids:
            ids = chain.from_iterable(map(_block_ids, blocks))
            token_ids = tuple(islice(ids, tokens))
            return RequestSpec("", tokens, output, token_ids=token_ids)
        block_words = math.ceil(TRACE_BLOCK / self.calibration.per_word)
        texts = [prompt_text(block_words, HashedDraws(block)) for block in blocks]
        all_words = " ".join(texts).split(" ")
        words = all_words[: self.calibration.words(tokens)]
        return RequestSpec(" ".join(words), tokens, output)

    def offset_ns(self, number: int) -> int:
        """When request `number` is due; the first row comes again one mean gap after the last."""
        turn, index = divmod(number, len(self))
        first_ms = self.at_ms[0]
        last_ms = self.at_ms[-1]
        n_gaps = max(len(self) - 1, 1)
        pass_ms = (last_ms - first_ms) * len(self) / n_gaps
        due_ms = turn * pass_ms + self.at_ms[index] - first_ms
        return round(due_ms * MS / self.speed)

    def due_ns(self, planned: Iterator[int]) -> Iterator[int]:
        """When each request is due: as `planned`, or as timestamps say; no more if data ends."""
        offsets = map(self.offset_ns, count()) if self.timed else planned
        return offsets if self.repeat else islice(offsets, len(self))

    def shared_tokens(self) -> Iterator[int]:
        """By row, the tokens that a cache which evicts nothing has from earlier rows.

        Whole KV blocks from the start and never the last token, as vLLM does it. Text is cut where
        the blocks are expected to end. Blocks beyond REMEMBERED_BLOCKS hit nothing.
        """
        cached: dict[int, int] = {}  # a block with all before it -> its tokens
        for index in range(len(self)):
            tokens, _ = self.planned(index)
            row = self.row(index)
            if "input_length" not in row:
                # Its text is what is sent, whatever hashes a trace gave it.
                blocks = self._text_blocks(text_of(row), tokens)
                shared = _look_up(cached, blocks, CACHE_BLOCK, tokens)
            elif "hash_ids" in row:
                shared = _look_up(cached, row["hash_ids"], TRACE_BLOCK, tokens)
            else:
                shared = 0
            yield min(shared, tokens - 1) // CACHE_BLOCK * CACHE_BLOCK

    def _text_blocks(self, text: bytes, tokens: int) -> list[bytes]:
        """A text of about so many tokens, cut where KV blocks are expected to end."""
        block_bytes = CACHE_BLOCK / self.tokens_per_byte
        n_blocks = math.ceil(tokens / CACHE_BLOCK)
        ends = [round(number * block_bytes) for number in range(n_blocks + 1)]
        return [text[start:end] for start, end in pairwise(ends)]


def _look_up(
    cached: dict[int, int], blocks: Sequence[int | bytes], block_tokens: int, tokens: int
) -> int:
    """How many of a prompt's `tokens` are cached, from its start on; then all of them are."""
    shared = 0
    hit = True  # so far
    key = 0
    for number, start in enumerate(range(0, tokens, block_tokens)):
        key = hash((key, blocks[number]))
        length = min(block_tokens, tokens - start)
        known = cached.get(key, 0)
        if hit:
            shared += min(known, length)
        hit = hit and known >= length
        if known or len(cached) < REMEMBERED_BLOCKS:
            cached[key] = max(known, length)
    return shared


def _cut_and_salt(messages: list[Row], cut_bytes: int, salt: str) -> None:
    """Shorten the longest text, which has the most to lose; let the first begin with the salt."""
    texts = [message for message in messages if isinstance(message.get("content"), str)]
    if not texts:
        return
    if cut_bytes:
        longest = max(texts, key=lambda message: len(message["content"]))
        data = longest["content"].encode()
        kept = data[: max(len(data) - cut_bytes, 1)]
        # The cut may lie inside a character.
        longest["content"] = kept.decode(errors="ignore")
    texts[0]["content"] = salt + texts[0]["content"]


@lru_cache(maxsize=1024)
def _block_ids(key: str) -> tuple[int, ...]:
    return prompt_ids(TRACE_BLOCK, HashedDraws(key))
