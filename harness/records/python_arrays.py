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
    raw, low = bytes(at_ns), bytes(not_before_ns)
    if not raw:
        return b"", b"", b""
    times = np.frombuffer(raw, np.int64)
    gaps = np.empty_like(times)
    gaps[0] = times[0] - sent_ns
    np.subtract(times[1:], times[:-1], out=gaps[1:])
    lags = ZEROS if raw == low else _pack((times - np.frombuffer(low, np.int64)).tobytes())
    return _pack(gaps.tobytes()), lags, _pack(bytes(tokens))


def unpack_in_python(
    sent_ns: int, n: int, at: bytes, lags: bytes, tokens: bytes, /
) -> tuple[bytes, bytes, bytes]:
    """Return the bytes of the three arrays, n int64 values each. Raises ValueError, KeyError."""
    times = np.cumsum(unpack_values(at, n), dtype=np.int64)
    times += sent_ns
    low = times if lags == ZEROS else times - unpack_values(lags, n)
    return times.tobytes(), low.tobytes(), unpack_values(tokens, n).astype(np.int64).tobytes()


def _pack(raw: bytes) -> bytes:
    if raw == raw[:8] * (len(raw) // 8):
        return b"c" + raw[:8]
    numbers = np.frombuffer(raw, np.int64)
    # the bits of the largest magnitude plus a sign; -128 fits into 8 bits, as 127 does
    bits = max(int(numbers.max()), -int(numbers.min()) - 1).bit_length() + 1
    width = next(w for w in (1, 2, 4, 8) if bits <= 8 * w)
    return b"%d" % width + numbers.astype(f"<i{width}").tobytes()


def unpack_values(packed: bytes, n: int) -> NDArray[np.signedinteger[Any]]:
    """Return the n values of a packed array. Raises ValueError if their number is another."""
    if n == 0:
        return np.zeros(0, np.int64)
    constant = packed[:1] == b"c"
    numbers = np.frombuffer(packed, "<i8" if constant else _TYPES[packed[:1]], offset=1)
    if len(numbers) != (1 if constant else n):
        raise ValueError(n)
    # A constant is not repeated in memory: all n elements of the view are the same eight bytes.
    return np.broadcast_to(numbers, n) if constant else numbers
