"""Encodes RequestRecords as frames with a length and a checksum, so that a torn file is readable.

A frame is a msgpack array `[version, crc32, bin32 payload]` with a header of fixed width. A file
consists of frames only: any msgpack reader can read it, and ours finds the next frame after damage
by the first bytes of its header. The payload is a msgpack array: the record's numbers in the order
of `NUMBER_FIELDS`, then outcome, error, finish reason, the number of events n, and three packed
arrays:

    at_ns          first differences, starting at sent_ns
    not_before_ns  as at_ns - not_before_ns (zero where the timestamp is exact)
    tokens         unchanged

and finally the numbers of `OPTIONAL_NUMBERS` and the request's name, which frames of older versions
do not have; a frame without a name ends before it.

A packed array is `c` + one int64 if all n values are equal, else the width in bytes (`1`, `2`, `4`,
`8`) + n signed integers, all little-endian. A token takes four bytes instead of twenty-four.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from operator import attrgetter
from typing import Any, BinaryIO, Final, Protocol, TypeVar

import msgpack

from harness.core.extensions import load_extension
from harness.records.request_record import ARRAYS, Outcome, RequestRecord

VERSION: Final = 1
# The order on disk: changing it needs a new VERSION. What is new goes behind the name, then always
# written: older readers ignore what follows what they know.
NUMBER_FIELDS: Final = (
    "worker", "number", "user", "scheduled_ns", "connect_ns", "sent_ns", "head_ns",
    "first_event_ns", "done_ns", "status", "planned_tokens", "prompt_tokens", "output_tokens",
    "cached_tokens", "answer_index",
)  # fmt: skip
OPTIONAL_NUMBERS: Final = (
    "events_before", "silent_events", "last_silent_ns", "session", "turn", "think_ns", "new_tokens",
    "mix_row", "planned_prompt",
)  # fmt: skip
VALUE_BYTES: Final = {b"1": 1, b"2": 2, b"4": 4, b"8": 8}  # bytes per value of a packed array
CONSTANT_BYTES: Final = 9  # of a packed array whose values are equal
# A damaged or malicious file may claim any length. A frame that claims more than these is invalid,
# which bounds both the search for its end and the memory for its events.
READ_BYTES: Final = 1 << 19  # bytes per read
MAX_EVENTS: Final = 1 << 20  # of a request
MAX_PAYLOAD_BYTES: Final = 1 << 25  # bytes: MAX_EVENTS of 24 bytes each, and some more
# In a payload the numbers come first, then seven values, then the optional numbers.
_N_NUMBERS: Final = len(NUMBER_FIELDS)
_OPTIONAL_START: Final = _N_NUMBERS + 7
_NAME: Final = _OPTIONAL_START + len(OPTIONAL_NUMBERS)
INVALID_PAYLOAD: Final = (ValueError, TypeError, IndexError, KeyError, OverflowError)

# array of 3 | version (positive fixint) | uint32 crc32 | bin32 length; then the payload
_HEADER: Final = struct.Struct(">BBBIBI")
HEADER_BYTES: Final = _HEADER.size
_ARRAY3: Final = 0x93
_UINT32: Final = 0xCE
_BIN32: Final = 0xC6
_numbers: Final = attrgetter(*NUMBER_FIELDS)
_later: Final = attrgetter(*OPTIONAL_NUMBERS)
OUTCOMES: Final = {outcome.value: outcome for outcome in Outcome}
_START: Final = bytes((_ARRAY3, VERSION, _UINT32))

# Packing takes half of the encoding time in Python and a twentieth of it in C, with the same bytes.
# The C version does not need numpy, whose import takes longer than all others of a load process.
LAYOUT: Final = 6  # as in `_arrays.c`
WHY_PYTHON: Final = load_extension("harness.records._arrays", LAYOUT)
if not WHY_PYTHON:
    from harness.records._arrays import pack, unpack
else:
    from harness.records.python_arrays import pack_in_python as pack
    from harness.records.python_arrays import unpack_in_python as unpack

Block = TypeVar("Block")


@dataclass(slots=True)
class Decoded:
    """Records in the order of their bytes, and the bytes that could not be read."""

    records: list[RequestRecord] = field(default_factory=list)
    torn_bytes: int = 0  # bytes of an unfinished last frame
    damaged_bytes: int = 0  # skipped up to the next valid frame, or of an unreadable frame


def encode(record: RequestRecord) -> bytes:
    """Return the record as a frame; a decoded record keeps the frame that it was read from."""
    if record.frame:
        return record.frame
    arrays = pack(record.sent_ns, record.at_ns, record.not_before_ns, record.tokens)
    texts = (record.outcome.value, record.error, record.finish_reason)
    n_events = len(record.at_ns)
    values = (*_numbers(record), *texts, n_events, *arrays, *_later(record))
    if record.name:
        values = (*values, record.name)
    payload: bytes = msgpack.packb(values)
    crc = zlib.crc32(payload)
    return _HEADER.pack(_ARRAY3, VERSION, _UINT32, crc, _BIN32, len(payload)) + payload


def decode(data: bytes) -> Decoded:
    """Return every record whose frame is complete, wherever the bytes were cut. Never raises."""
    result = Decoded()
    result.records.extend(decode_each(data, result))
    return result


def decode_each(data: bytes, losses: Decoded) -> Iterator[RequestRecord]:
    """Yield the records one at a time, so that they need not all be in memory."""
    for frame in read_frames(BytesIO(data), len(data), losses):
        try:
            record = RecordRow.read(frame[HEADER_BYTES:]).record()
        except INVALID_PAYLOAD:
            losses.damaged_bytes += len(frame)
        else:
            object.__setattr__(record, "frame", frame)  # frozen, but nobody else has it yet
            yield record


class Losses(Protocol):
    """What counts bytes that could not be read: Decoded, or the Damage of a folder."""

    torn_bytes: int
    damaged_bytes: int


def read_frames(file: BinaryIO, left: int, losses: Losses) -> Iterator[bytes]:
    """Yield the complete frames in the next `left` bytes of a file; count the other bytes."""
    return read_blocks(file, left, losses, _no_block)


def _no_block(_data: bytes, at: int) -> tuple[bytes | None, int]:
    return None, at


def read_blocks(
    file: BinaryIO,
    left: int,
    losses: Losses,
    take: Callable[[bytes, int], tuple[Block | None, int]],
) -> Iterator[Block | bytes]:
    """As `read_frames`, many frames at a time: `take(data, at)` makes a block of those at `at`.

    It returns the block and where it ends; None and `at` if the frame there, if any, is left to be
    yielded as it is.
    """
    # Bytes that cannot begin a frame are dropped, and the missing part of a frame is read in one
    # go. So neither foreign bytes nor a damaged length can make the buffer grow from read to read
    # while it is copied and searched again each time, which would be quadratic.
    data = b""
    skipped = 0  # bytes since the latest frame that begin none
    need = READ_BYTES
    while left:
        fresh = file.read(min(need, left))
        left = left - len(fresh) if fresh else 0
        data += fresh
        at = 0
        while True:
            block, end = take(data, at)
            if block is not None:
                losses.damaged_bytes += skipped
                skipped = 0
                at = end
                yield block
                continue
            start, stop, complete = next_frame(data, at, left)
            skipped += start - at  # damaged if a complete frame follows, else torn
            if not complete:
                break
            losses.damaged_bytes += skipped
            skipped = 0
            at = stop
            yield data[start:stop]
        need = max(READ_BYTES, stop - len(data))
        data = data[start:]
    losses.torn_bytes += skipped + len(data)


def next_frame(data: bytes, at: int, more: int = 0) -> tuple[int, int, bool]:
    """Return (start, stop, True) of the first frame at or after `at` with a valid checksum.

    If there is none, return (start, stop, False): no frame begins before `start`. One that needs
    the bytes up to `stop` may begin there, if `more` bytes follow these.
    """
    # The header's first three bytes mark a frame, but arrays may contain the same bytes by chance.
    # A candidate counts only if its length is possible and its checksum matches; else the search
    # continues one byte later.
    while (start := data.find(_START, at)) >= 0:
        payload = start + HEADER_BYTES
        if payload > len(data):
            return start, payload, False
        *_, crc, kind, size = _HEADER.unpack_from(data, start)
        stop = payload + size
        if kind == _BIN32 and size <= MAX_PAYLOAD_BYTES:
            if len(data) < stop <= len(data) + more:
                return start, stop, False
            if stop <= len(data):
                crc_found = zlib.crc32(memoryview(data)[payload:stop])
                if crc_found == crc:
                    return start, stop, True
        at = start + 1
    # a frame may begin in the last bytes, cut inside its mark
    return max(at, len(data) - len(_START) + 1), len(data), False


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A payload with validated fields; its arrays are still packed."""

    numbers: array[int]  # NUMBER_FIELDS, OPTIONAL_NUMBERS
    outcome: Outcome
    error: str
    finish_reason: str
    n: int  # events
    packed: tuple[bytes, bytes, bytes]  # ARRAYS
    name: str

    @classmethod
    def read(cls, payload: bytes) -> RecordRow:
        """Raises one of INVALID_PAYLOAD."""
        values = msgpack.unpackb(payload)
        outcome, error, reason, n, *packed = values[_N_NUMBERS:_OPTIONAL_START]
        # Equal values are packed as one, whatever their number: only MAX_EVENTS bounds the memory.
        if not 0 <= n <= MAX_EVENTS:
            raise ValueError(n)
        if not all(_has_length(column, n) for column in packed):
            raise ValueError(n)
        if not (isinstance(error, str) and isinstance(reason, str)):
            raise TypeError(error, reason)
        present = values[_OPTIONAL_START:_NAME]
        missing = [-1] * (len(OPTIONAL_NUMBERS) - len(present))  # in a frame of an older version
        numbers = array("q", [*values[:_N_NUMBERS], *present, *missing])
        name = values[_NAME] if len(values) > _NAME else ""
        if not isinstance(name, str):
            raise TypeError(name)
        at, lags, tokens = packed
        return cls(numbers, OUTCOMES[outcome], error, reason, n, (at, lags, tokens), name)

    def record(self) -> RequestRecord:
        names = (*NUMBER_FIELDS, *OPTIONAL_NUMBERS)
        fields: dict[str, Any] = dict(zip(names, self.numbers, strict=True))
        unpacked = unpack(fields["sent_ns"], self.n, *self.packed)
        for name, raw in zip(ARRAYS, unpacked, strict=True):
            fields[name] = array("q", raw)
        return RequestRecord(
            **fields,
            outcome=self.outcome,
            error=self.error,
            finish_reason=self.finish_reason,
            name=self.name,
        )


def _has_length(packed: bytes, n: int) -> bool:
    """Whether a packed array may hold n values."""
    if not n:
        return True
    kind = packed[:1]
    if kind == b"c":
        return len(packed) == CONSTANT_BYTES
    return len(packed) == 1 + VALUE_BYTES[kind] * n
