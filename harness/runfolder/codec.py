"""RequestRecord <-> bytes: frames that end where they say, so that a torn file can still be read.

A frame is a msgpack array `[version, crc32, bin32 payload]` with a header of fixed width, and a
file is nothing but frames: any msgpack reader walks it, and ours finds the next frame after damage
by the header's first bytes. The payload is a msgpack array: the record's numbers in the order of
`NUMBERS`, then outcome, error, finish reason, the number of events n and three packed arrays:

    at_ns          first differences, from sent_ns on
    not_before_ns  as at_ns - not_before_ns (zero where the stamp is exact)
    tokens         as they are

A packed array is `c` + one int64 when all n values are equal, else the width in bytes (`1`, `2`,
`4`, `8`) + n signed integers. All little-endian. A token takes four bytes instead of twenty-four.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np

from harness.measure.records import Outcome, RequestRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

VERSION: Final = 1
# the order on disk: changing it, or the fields, needs a new version
NUMBERS: Final = (
    "worker", "number", "user", "scheduled_ns", "connect_ns", "sent_ns", "head_ns",
    "first_event_ns", "done_ns", "status", "planned_tokens", "prompt_tokens", "output_tokens",
    "cached_tokens", "answer_index",
)  # fmt: skip

# array of 3 | version (positive fixint) | uint32 crc32 | bin32 length; then the payload
_HEADER: Final = struct.Struct(">BBBIBI")
_ARRAY3, _UINT32, _BIN32 = 0x93, 0xCE, 0xC6
_START: Final = bytes((_ARRAY3, VERSION, _UINT32))


@dataclass(slots=True)
class Decoded:
    """Records of some bytes, in their order, and what could not be read."""

    records: list[RequestRecord] = field(default_factory=list)
    torn_bytes: int = 0  # bytes of an unfinished last frame
    damaged_bytes: int = 0  # bytes skipped to the next good frame, or of a frame we cannot read


def encode(record: RequestRecord) -> bytes:
    """One frame."""
    at = _ints(record.at_ns)
    payload: bytes = msgpack.packb(
        [
            *(getattr(record, name) for name in NUMBERS),
            record.outcome.value,
            record.error,
            record.finish_reason,
            len(at),
            _pack(np.diff(at, prepend=record.sent_ns)),
            _pack(at - _ints(record.not_before_ns)),
            _pack(_ints(record.tokens)),
        ]
    )
    crc, size = zlib.crc32(payload), len(payload)
    return _HEADER.pack(_ARRAY3, VERSION, _UINT32, crc, _BIN32, size) + payload


def encode_all(records: Iterable[RequestRecord]) -> bytes:
    """Frames, one after another; `decode` takes them back."""
    return b"".join(map(encode, records))


def decode(data: bytes) -> Decoded:
    """Every record whose frame is whole, wherever the bytes were cut. Never raises."""
    result = Decoded()
    end = 0
    for start, stop in _frames(data):
        result.damaged_bytes += start - end
        end = stop
        try:
            record = _record(msgpack.unpackb(data[start + _HEADER.size : stop]))
        except (ValueError, TypeError, IndexError, KeyError, OverflowError):
            result.damaged_bytes += stop - start
        else:
            result.records.append(record)
    result.torn_bytes = len(data) - end
    return result


def _frames(data: bytes) -> Iterator[tuple[int, int]]:
    """(start, stop) of each frame with a right checksum."""
    start = data.find(_START)
    while start >= 0 and start + _HEADER.size <= len(data):
        *_, crc, kind, size = _HEADER.unpack_from(data, start)
        payload, stop = start + _HEADER.size, start + _HEADER.size + size
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
    numbers = dict(zip(NUMBERS, values, strict=False))
    outcome, error, finish_reason, n, at, lag, tokens = values[len(NUMBERS) : len(NUMBERS) + 7]
    at_ns = np.cumsum(_unpack(at, n)) + numbers["sent_ns"]
    return RequestRecord(
        **numbers,
        outcome=Outcome(outcome),
        error=error,
        finish_reason=finish_reason,
        at_ns=array("q", at_ns.tobytes()),
        not_before_ns=array("q", (at_ns - _unpack(lag, n)).tobytes()),
        tokens=array("q", _unpack(tokens, n).tobytes()),
    )


def _ints(values: array[int]) -> Ints:
    return np.frombuffer(values, np.int64) if len(values) else np.zeros(0, np.int64)


def _pack(values: Ints) -> bytes:
    """An array in the fewest bytes a value that hold it."""
    if not len(values):
        return b""
    low, high = int(values.min()), int(values.max())
    if low == high:
        return b"c" + struct.pack("<q", low)
    bits = max(high, -low - 1).bit_length() + 1
    width = next(w for w in (1, 2, 4, 8) if bits <= 8 * w)
    return b"%d" % width + values.astype(f"<i{width}").tobytes()


def _unpack(packed: bytes, n: int) -> Ints:
    """So many values; ValueError when there are not as many."""
    if n == 0:
        return np.zeros(0, np.int64)
    if packed[:1] == b"c":
        return np.full(n, struct.unpack("<q", packed[1:])[0], np.int64)
    values = np.frombuffer(packed, f"<i{int(packed[:1])}", offset=1).astype(np.int64)
    if len(values) != n:
        raise ValueError(n)
    return values
