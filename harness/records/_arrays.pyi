from array import array
from collections.abc import Callable

from harness.core.arrays import Floats, Ints

LAYOUT: int
ROW_CELLS: int

def pack(
    sent_ns: int, at_ns: array[int], not_before_ns: array[int], tokens: array[int], /
) -> tuple[bytes, bytes, bytes]: ...
def unpack(
    sent_ns: int, n: int, at: bytes, lags: bytes, tokens: bytes, /
) -> tuple[bytes, bytes, bytes]: ...
def rows(
    data: bytes,
    start: int,
    crc32: Callable[[memoryview], int],
    outcomes: tuple[bytes, ...],
    most_events: int,
    rows: Ints,
    /,
) -> tuple[int, int]: ...
def events(
    data: bytes,
    rows: Ints,
    at_ns: Ints,
    not_before_ns: Ints,
    tokens: Ints,
    /,
) -> None: ...
def gaps(
    offsets: Ints,
    at_ns: Ints,
    not_before_ns: Ints,
    end: Ints,
    gap_ns: Ints,
    min_ns: Ints,
    max_ns: Ints,
    /,
) -> int: ...
def count(ns: Ints, cells: Ints, counts: Floats, sums: Floats, /) -> None: ...
