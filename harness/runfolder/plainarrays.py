"""`arrays` without C, and what reads many arrays at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from array import array

    from numpy.typing import NDArray

ZEROS: Final = b"c" + bytes(8)  # a packed array of nothing but zeros
_TYPES: Final = {b"1": "<i1", b"2": "<i2", b"4": "<i4", b"8": "<i8"}


def pack_in_python(
    sent_ns: int, at_ns: array[int], not_before_ns: array[int], tokens: array[int], /
) -> tuple[bytes, bytes, bytes]:
    """(at_ns, not_before_ns, tokens) as in a payload; each has as many int64 values."""
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
    """The inverse: the bytes of n int64 values each. Raises ValueError, KeyError."""
    times = np.cumsum(values(at, n), dtype=np.int64)
    times += sent_ns
    low = times if lags == ZEROS else times - values(lags, n)
    return times.tobytes(), low.tobytes(), values(tokens, n).astype(np.int64).tobytes()


def _pack(raw: bytes) -> bytes:
    if raw == raw[:8] * (len(raw) // 8):
        return b"c" + raw[:8]
    numbers = np.frombuffer(raw, np.int64)
    bits = max(int(numbers.max()), -int(numbers.min()) - 1).bit_length() + 1
    width = next(w for w in (1, 2, 4, 8) if bits <= 8 * w)
    return b"%d" % width + numbers.astype(f"<i{width}").tobytes()


def values(packed: bytes, n: int) -> NDArray[np.signedinteger[Any]]:
    """So many, of whatever width; ValueError when there are not as many."""
    if n == 0:
        return np.zeros(0, np.int64)
    constant = packed[:1] == b"c"
    raw = packed[1:] * n if constant else packed[1:]
    numbers = np.frombuffer(raw, "<i8" if constant else _TYPES[packed[:1]])
    if len(numbers) != n:
        raise ValueError(n)
    return numbers
