from array import array
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

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
    rows: NDArray[np.int64],
    /,
) -> tuple[int, int]: ...
def events(
    data: bytes,
    rows: NDArray[np.int64],
    at_ns: NDArray[np.int64],
    not_before_ns: NDArray[np.int64],
    tokens: NDArray[np.int64],
    /,
) -> None: ...
