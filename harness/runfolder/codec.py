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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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
_PAYLOAD: Final = (*NUMBERS, "outcome", "error", "finish_reason", "n", *ARRAYS, *LATER)

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


class Sealed(NamedTuple):
    """A record as its frame, and what must be known of it without opening that."""

    worker: int
    number: int
    outcome: Outcome
    done_ns: int
    error: str
    frame: bytes

    @property
    def key(self) -> tuple[int, int]:
        """As the record's."""
        return self.worker, self.number

    def open(self) -> RequestRecord:
        """The record."""
        return decode(self.frame).records[0]


def encode(record: RequestRecord | Sealed) -> bytes:
    """One frame: that from which the record was decoded, if it was."""
    if isinstance(record, Sealed) or record.frame:
        return record.frame
    return _frame(record)


def _frame(record: RequestRecord) -> bytes:
    r = record
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
    for start, stop in frames(data):
        losses.damaged_bytes += start - end
        end = stop
        frame = bytes(data[start:stop])
        try:
            record = _record(msgpack.unpackb(frame[HEADER_BYTES:]))
        except (ValueError, TypeError, IndexError, KeyError, OverflowError, MemoryError):
            losses.damaged_bytes += stop - start
        else:
            object.__setattr__(record, "frame", frame)  # frozen, but not known to anybody yet
            yield record
    losses.torn_bytes = len(data) - end


def frames(data: bytes | bytearray, more: int = 0) -> Iterator[tuple[int, int]]:
    """(start, stop) of each frame with a right checksum.

    `more` bytes are to come after these: where a frame may reach into them, the search ends.
    """
    start = data.find(_START)
    while start >= 0:
        payload = start + HEADER_BYTES
        if payload > len(data):
            return
        *_, crc, kind, size = _HEADER.unpack_from(data, start)
        stop = payload + size
        if kind == _BIN32 and len(data) < stop <= len(data) + more:
            return
        if (
            kind == _BIN32
            and stop <= len(data)
            and zlib.crc32(memoryview(data)[payload:stop]) == crc
        ):
            yield start, stop
            start = data.find(_START, stop)
        else:
            start = data.find(_START, start + 1)


def _record(values: list[Any]) -> RequestRecord:
    """The record of one payload; raises on anything that is not one."""
    fields = dict(zip(_PAYLOAD, values, strict=False))
    packed = [fields[name] for name in ARRAYS]
    unpacked = unpack(fields["sent_ns"], fields.pop("n"), *packed)
    for name, raw in zip(ARRAYS, unpacked, strict=True):
        fields[name] = array("q", raw)
    fields["outcome"] = OUTCOMES[fields["outcome"]]
    return RequestRecord(**fields)
