"""Own data: requests from a file with a JSON object per line (docs/data.md).

    {"prompt": "...", "output_tokens": 64, "timestamp": 1500}
    {"messages": [...], "tools": [...]}
    {"timestamp": 1500, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}

The last is a row of a Mooncake trace: no text, but a hash for each block of 512 tokens. Timestamps
are in ms. Memory holds 32 bytes per row; a line is read again when it is due.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from harness.errors import ConfigError, one_line
from harness.load.lengths import FROM_DATA, Lengths
from harness.load.plan import UNCALIBRATED, RequestSpec, room_of, seeded_random
from harness.load.tokens import HashedDraws, prompt_ids, prompt_text
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.load.tokens import Calibration
    from harness.load.workloads import Workload

    Row = dict[str, Any]

TRACE_BLOCK: Final = 512  # tokens of a Mooncake block
CACHE_BLOCK: Final = 16  # tokens of a KV block, vLLM's default
LONGEST_LINE: Final = 64 << 20  # bytes
TOKENS_PER_BYTE: Final = 0.25  # of text, until a server has counted some
SAMPLE: Final = 16  # rows of which it counts the tokens
REMEMBERED_BLOCKS: Final = 1 << 21  # by `shared_tokens`: about 200 MB
NAMED, QUOTED = 3, 60  # bad lines that an error names, characters that it quotes


def _is_list(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(type(one) is kind for one in value)


def _is_number(value: object, least: int, *kinds: type) -> bool:
    return type(value) in kinds and value >= least  # type: ignore[operator]


# field -> whether its value can be used, what is expected
FIELDS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "prompt": (lambda value: isinstance(value, str) and bool(value), "text that is not empty"),
    "messages": (
        lambda value: _is_list(value, dict) and value and all("role" in one for one in value),
        "a list of messages, each an object with a role",
    ),
    "tools": (lambda value: _is_list(value, dict), "a list of objects"),
    "timestamp": (lambda value: _is_number(value, 0, int, float), "milliseconds, 0 or more"),
    "hash_ids": (lambda value: _is_list(value, int), "a list of whole numbers"),
} | dict.fromkeys(
    ("output_tokens", "output_length", "input_length"),
    (lambda value: _is_number(value, 1, int), "a whole number from 1 up"),
)


def parse_row(line: bytes) -> Row:
    """The fields of a line that are not null. Raises ValueError: what was found and expected."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"found no JSON ({error.msg}), expected an object") from None
    row = {k: v for k, v in found.items() if v is not None} if isinstance(found, dict) else {}
    for name in row.keys() & FIELDS.keys():
        fits, expected = FIELDS[name]
        if not fits(row[name]):
            value = one_line(repr(row[name]), QUOTED)
            raise ValueError(f"found {name} {value}, expected {expected}")
    if len(row.keys() & {"prompt", "messages", "input_length"}) != 1:
        value = one_line(line.decode(), QUOTED)
        raise ValueError(f"found {value}, expected one of prompt, messages and input_length")
    n_blocks = math.ceil(row.get("input_length", 0) / TRACE_BLOCK)
    n_hashes = len(row.get("hash_ids", ()))
    if n_blocks and (n_hashes != n_blocks or "output_length" not in row):
        raise ValueError(
            f"found {n_hashes} hash_ids and output_length {row.get('output_length', 'missing')}, "
            f"expected both, and a hash for each {TRACE_BLOCK} tokens of input_length: {n_blocks}"
        )
    return row


def text_of(row: Row) -> bytes:
    """The text of a row: that of a longer conversation begins with it."""
    prompt: str = row.get("prompt", "")
    parts = (*row.get("tools", ()), *row.get("messages", ()))
    return prompt.encode() + b"".join(map(orjson.dumps, parts))


@dataclass(frozen=True, slots=True)
class DataOptions:
    """What each load process must know to send the same rows; it opens the file itself."""

    path: str
    speed: float = 1.0  # timestamps come so many times as fast
    repeat: bool = True  # after the last row the first comes again; else the run ends
    digest: str = ""  # of the file that was checked; "": not yet
    tokens_per_byte: float = TOKENS_PER_BYTE


class DataSource:
    """The requests of a file: request k of a run is row k, modulo the number of rows."""

    def __init__(
        self,
        options: DataOptions,
        workload: Workload,
        calibration: Calibration = UNCALIBRATED,
        *,
        seed: int = 1,
        salt: str = "",
    ) -> None:
        """Read and check the whole file. Raises ConfigError that names the lines that are wrong.

        `workload` gives the API and, to rows without one, the length of the answer. With `salt`
        each pass over the rows begins its prompts with words of its own.
        """
        self.workload, self.calibration, self.seed, self.salt = workload, calibration, seed, salt
        self.n_messages = self.n_traces = 0  # rows of these kinds
        self.at_ms, self.outputs = array("d"), array("l")  # NaN, 0: not given
        self._starts = array("q", [0])  # of the lines in the file, and its end
        self._sizes = array("l")  # of prompts: tokens, or minus the bytes of a text
        try:
            self._file = Path(options.path).open("rb")  # noqa: SIM115 - as long as the process
            digest = self._read(options.path)
        except OSError as error:
            raise ConfigError(
                f"--data is {options.path}, which cannot be read ({error.strerror}): expected a "
                "file with a JSON object per line, at this path on each machine that sends load."
            ) from None
        if options.digest not in ("", digest):
            raise ConfigError(
                f"--data {options.path} is not the file that was checked: expected the same one "
                "for each load process, unchanged as long as the run lasts."
            )
        self.options = replace(options, digest=digest)

    def _read(self, path: str) -> str:
        digest, n_wrong, wrong = blake2b(digest_size=16), 0, []
        lines = iter(lambda: self._file.readline(LONGEST_LINE), b"")
        for number, line in enumerate(lines, start=1):
            digest.update(line)
            try:
                self._add(line)
            except ValueError as error:
                n_wrong += 1
                wrong += [f"line {number}: {error}"] * (n_wrong <= NAMED)
            if len(line) == LONGEST_LINE:  # half an object was named above, and is the end
                break
        if n_wrong or not self._sizes:
            what = f"{n_wrong:,} bad lines ({'; '.join(wrong)}{'; ...' * (n_wrong > NAMED)})"
            raise ConfigError(
                f"--data {path} has {what if wrong else 'no lines'}: expected a JSON object per "
                'line; try {"prompt": "Hello", "output_tokens": 16}.'
            )
        return digest.hexdigest()

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

    @property
    def timed(self) -> bool:
        """Whether the rows have timestamps."""
        return not math.isnan(self.at_ms[0])

    def row(self, index: int) -> Row:
        """Row `index`, read again."""
        self._file.seek(self._starts[index])
        return parse_row(self._file.read(self._starts[index + 1] - self._starts[index]))

    def as_workload(self, api: str | None) -> Workload:
        """The file's mean lengths, on an API that takes its rows. Raises ConfigError."""
        if self.n_messages and api not in (None, "chat"):
            raise ConfigError(
                f"--api is {api} and --data has {self.n_messages:,} rows with messages: expected "
                "an API that takes them; try --api chat."
            )
        traces, n = self.n_traces == len(self), len(self)
        usual = "chat" if self.n_messages else "completions" if traces else self.workload.api
        prompt, output = (
            Lengths(FROM_DATA, math.ceil(sum(self.planned(i)[part] for i in range(n)) / n))
            for part in (0, 1)
        )
        return replace(
            self.workload,
            name="data",
            title=f"{n:,} rows of {Path(self.options.path).name} ({self.options.digest[:8]})",
            api=api or usual,
            prompt=prompt,
            output=self.workload.output if 0 in self.outputs else output,
            system_tokens=0,
            token_ids=traces and (api or usual) == "completions",
        )

    def learn(self, count_tokens: Callable[[str], int]) -> None:
        """How many tokens a byte of the texts has, from the server's count of some of them."""
        some = range(0, len(self), math.ceil(len(self) / SAMPLE))
        if text := "".join(text_of(self.row(i)).decode()[:2000] for i in some):
            share = count_tokens(text) / len(text.encode())
            self.options = replace(self.options, tokens_per_byte=share)

    def planned(self, index: int) -> tuple[int, int]:
        """(prompt, output) tokens of row `index` as the file has them; of text, about."""
        size, output = self._sizes[index], self.outputs[index]
        output = output or self.workload.output.draw(seeded_random(self.seed, "data", index))
        return size if size > 0 else math.ceil(-size * self.options.tokens_per_byte), output

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
        turn, index = divmod(number, len(self))
        row, (tokens, output) = self.row(index), self.lengths(index, room_of(self.workload))
        salt = f"{self.salt}/{turn} " if self.salt else ""
        if "input_length" in row:
            return self._of_hashes([f"{salt}{one}" for one in row["hash_ids"]], tokens, output)
        prompt = {"role": "user", "content": row.get("prompt")}
        messages = [dict(one) for one in row.get("messages", (prompt,))]
        # What is clipped, the longest text, and the first one, which gets the salt.
        texts = [one for one in messages if isinstance(one.get("content"), str)]
        drop = math.ceil((self.planned(index)[0] - tokens) / self.options.tokens_per_byte)
        if drop and texts:
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
        """When request `number` is due, from the first on.

        The first row comes again one mean gap after the last.
        """
        (turn, index), at = divmod(number, len(self)), self.at_ms
        pass_ms = (at[-1] - at[0]) * len(self) / max(len(self) - 1, 1)
        return round((turn * pass_ms + at[index] - at[0]) * MS / self.options.speed)

    def offsets_ns(self) -> Iterator[int]:
        """The same of each request: endless, unless the run ends with the data."""
        return map(self.offset_ns, count() if self.options.repeat else range(len(self)))

    def shared_tokens(self) -> Iterator[int]:
        """By row, the tokens that a cache which evicts nothing has from earlier rows.

        Whole KV blocks from the start and never the last token, as vLLM does it. Text is cut where
        the blocks are expected to end.
        """
        seen: dict[int, int] = {}  # a block with all before it -> its tokens
        size = CACHE_BLOCK / self.options.tokens_per_byte
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
