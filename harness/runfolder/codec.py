"""RequestRecord <-> bytes: frames that end where they say, so that a torn file can still be read.

A frame is a msgpack array `[version, crc32, bin32 payload]` with a header of fixed width, and a
file is nothing but frames: any msgpack reader walks it, and ours finds the next frame after damage
by the header's first bytes. The payload is a msgpack array: the record's numbers in the order of
`NUMBERS`, then outcome, error, finish reason, the number of events n and three packed arrays:

    at_ns          first differences, from sent_ns on
    not_before_ns  as at_ns - not_before_ns (zero where the stamp is exact)
    tokens         as they are

and at last the numbers of LATER, which frames of older versions lack.

A packed array is `c` + one int64 when all n values are equal, else the width in bytes (`1`, `2`,
`4`, `8`) + n signed integers. All little-endian. A token takes four bytes instead of twenty-four.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgpack

from harness.measure.records import ARRAYS, Outcome, RequestRecord
from harness.runfolder.arrays import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION: Final = 1
# the order on disk: changing it needs a new version; a new number goes to the end of LATER, which
# older readers pass over and whose numbers have defaults
NUMBERS: Final = (
    "worker", "number", "user", "scheduled_ns", "connect_ns", "sent_ns", "head_ns",
    "first_event_ns", "done_ns", "status", "planned_tokens", "prompt_tokens", "output_tokens",
    "cached_tokens", "answer_index",
)  # fmt: skip
LATER: Final = ("events_before", "silent_events", "last_silent_ns")
WIDTHS: Final = {b"1": 1, b"2": 2, b"4": 4, b"8": 8}  # bytes a value of a packed array
# Damage or malice may claim any length. What claims more than these is no record, so that neither a
# frame's end is looked for far away nor more memory is taken than this for its events.
MAX_EVENTS: Final = 1 << 20  # of a request
MAX_PAYLOAD: Final = 1 << 25  # bytes: room for as many events of 24 bytes, and then some
NO_RECORD: Final = (ValueError, TypeError, IndexError, KeyError, OverflowError)  # of a payload

# array of 3 | version (positive fixint) | uint32 crc32 | bin32 length; then the payload
_HEADER: Final = struct.Struct(">BBBIBI")
HEADER_BYTES: Final = _HEADER.size
_ARRAY3, _UINT32, _BIN32 = 0x93, 0xCE, 0xC6
_numbers: Final = attrgetter(*NUMBERS)
_later: Final = attrgetter(*LATER)
OUTCOMES: Final = {outcome.value: outcome for outcome in Outcome}
_START: Final = bytes((_ARRAY3, VERSION, _UINT32))


@dataclass(slots=True)
class Decoded:
    """Records of some bytes, in their order, and what could not be read."""

    records: list[RequestRecord] = field(default_factory=list)
    torn_bytes: int = 0  # bytes of an unfinished last frame
    damaged_bytes: int = 0  # bytes skipped to the next good frame, or of a frame we cannot read


def encode(record: RequestRecord) -> bytes:
    """One frame: that from which the record was decoded, if it was."""
    r = record
    if r.frame:
        return r.frame
    arrays = pack(r.sent_ns, r.at_ns, r.not_before_ns, r.tokens)
    words = r.outcome.value, r.error, r.finish_reason
    payload: bytes = msgpack.packb((*_numbers(r), *words, len(r.at_ns), *arrays, *_later(r)))
    crc, size = zlib.crc32(payload), len(payload)
    return _HEADER.pack(_ARRAY3, VERSION, _UINT32, crc, _BIN32, size) + payload


def decode(data: bytes) -> Decoded:
    """Every record whose frame is whole, wherever the bytes were cut. Never raises."""
    result = Decoded()
    result.records.extend(decode_each(data, result))
    return result


def decode_each(data: bytes, losses: Decoded) -> Iterator[RequestRecord]:
    """The same one after another, so that they need not all be in memory."""
    end = 0
    while True:
        start, stop, whole = next_frame(data, end)
        if not whole:
            break
        losses.damaged_bytes += start - end
        end = stop
        frame = bytes(data[start:stop])
        try:
            record = Row.read(frame[HEADER_BYTES:]).record()
        except NO_RECORD:
            losses.damaged_bytes += stop - start
        else:
            object.__setattr__(record, "frame", frame)  # frozen, but not known to anybody yet
            yield record
    losses.torn_bytes = len(data) - end


def next_frame(data: bytes, at: int, more: int = 0) -> tuple[int, int, bool]:
    """(start, stop, True) of the first frame from `at` on that has a right checksum.

    Where there is none: (start, stop, False), and no frame begins before `start`. One that needs
    the bytes up to `stop` may begin there, if `more` bytes are to come after these.
    """
    while (start := data.find(_START, at)) >= 0:
        payload = start + HEADER_BYTES
        if payload > len(data):
            return start, payload, False
        *_, crc, kind, size = _HEADER.unpack_from(data, start)
        stop = payload + size
        if kind == _BIN32 and size <= MAX_PAYLOAD:
            if len(data) < stop <= len(data) + more:
                return start, stop, False
            if stop <= len(data) and zlib.crc32(memoryview(data)[payload:stop]) == crc:
                return start, stop, True
        at = start + 1
    # the last bytes may be a frame's first ones
    return max(at, len(data) - len(_START) + 1), len(data), False


@dataclass(frozen=True, slots=True)
class Row:
    """A payload whose fields have been checked; its arrays are still packed."""

    numbers: array[int]  # NUMBERS, LATER
    outcome: Outcome
    error: str
    finish_reason: str
    n: int  # events
    packed: tuple[bytes, bytes, bytes]  # ARRAYS

    @classmethod
    def read(cls, payload: bytes) -> Row:
        """Raises one of NO_RECORD."""
        values = msgpack.unpackb(payload)
        plain, later = len(NUMBERS), len(NUMBERS) + 7
        outcome, error, reason, n, *packed = values[plain:later]
        # Equal values are packed as one, however many they are: only this limit bounds their number
        if not 0 <= n <= MAX_EVENTS or not all(_has_length(one, n) for one in packed):
            raise ValueError(n)
        if not (isinstance(error, str) and isinstance(reason, str)):
            raise TypeError(error, reason)
        told = values[later : later + len(LATER)]
        unsaid = [-1] * (len(LATER) - len(told))  # by an older version
        numbers = array("q", [*values[:plain], *told, *unsaid])
        at, lags, tokens = packed
        return cls(numbers, OUTCOMES[outcome], error, reason, n, (at, lags, tokens))

    def record(self) -> RequestRecord:
        """As an object."""
        fields: dict[str, Any] = dict(zip((*NUMBERS, *LATER), self.numbers, strict=True))
        unpacked = unpack(fields["sent_ns"], self.n, *self.packed)
        fields |= {name: array("q", raw) for name, raw in zip(ARRAYS, unpacked, strict=True)}
        fields |= {"error": self.error, "finish_reason": self.finish_reason}
        return RequestRecord(**fields, outcome=self.outcome)


def _has_length(packed: bytes, n: int) -> bool:
    """Whether a packed array holds n values."""
    kind = packed[:1]
    return not n or len(packed) == (9 if kind == b"c" else 1 + WIDTHS[kind] * n)
