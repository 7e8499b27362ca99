"""A record's arrays packed in Python, as `_arrays.c` does; `unpack_values` reads many at once."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ZEROS: Final = b"c" + bytes(8)  # a packed array of zeros
_TYPES: Final = {b"1": "<i1", b"2": "<i2", b"4": "<i4", b"8": "<i8"}


def pack_in_python(
    sent_ns: int, at_ns: array[int], not_before_ns: array[int], tokens: array[int], /
) -> tuple[bytes, bytes, bytes]:
    """Return (at_ns, not_before_ns, tokens) as in a payload, from int64 arrays of one length."""
    at = bytes(at_ns)
    low = bytes(not_before_ns)
    if not at:
        return b"", b"", b""
    times = np.frombuffer(at, np.int64)
    gaps = np.empty_like(times)
    gaps[0] = times[0] - sent_ns
    np.subtract(times[1:], times[:-1], out=gaps[1:])
    lags = ZEROS
    if at != low:
        lags_ns = times - np.frombuffer(low, np.int64)
        lags = _pack(lags_ns.tobytes())
    return _pack(gaps.tobytes()), lags, _pack(bytes(tokens))


def unpack_in_python(
    sent_ns: int, n: int, at: bytes, lags: bytes, tokens: bytes, /
) -> tuple[bytes, bytes, bytes]:
    """Return the bytes of the three arrays, n int64 values each. Raises ValueError, KeyError."""
    # Summed as int64: the gaps may be stored in a byte each.
    times = np.cumsum(unpack_values(at, n), dtype=np.int64)
    times += sent_ns
    low = times
    if lags != ZEROS:
        low = times - unpack_values(lags, n)
    counts = unpack_values(tokens, n).astype(np.int64)
    return times.tobytes(), low.tobytes(), counts.tobytes()


def _pack(raw: bytes) -> bytes:
    first = raw[:8]
    n = len(raw) // 8
    if raw == first * n:
        return b"c" + first
    numbers = np.frombuffer(raw, np.int64)
    # -128 fits into 8 bits, as 127 does
    largest = int(numbers.max())
    smallest = int(numbers.min())
    magnitude = max(largest, -smallest - 1)
    bits = magnitude.bit_length() + 1  # and a sign
    width = next(width for width in (1, 2, 4, 8) if bits <= 8 * width)
    packed = numbers.astype(f"<i{width}")
    return b"%d" % width + packed.tobytes()


def unpack_values(packed: bytes, n: int) -> NDArray[np.signedinteger[Any]]:
    """Return the n values of a packed array. Raises ValueError if their number is another."""
    if n == 0:
        return np.zeros(0, np.int64)
    kind = packed[:1]
    if kind == b"c":
        constant = np.frombuffer(packed, "<i8", offset=1)
        if len(constant) != 1:
            raise ValueError(n)
        # Not repeated in memory: all n elements of the view are the same eight bytes.
        return np.broadcast_to(constant, n)
    numbers = np.frombuffer(packed, _TYPES[kind], offset=1)
    if len(numbers) != n:
        raise ValueError(n)
    return numbers
