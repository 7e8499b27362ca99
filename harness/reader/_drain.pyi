from array import array
from types import TracebackType
from typing import Any, Self

LAYOUT: dict[str, Any]

class Drain:
    def __new__(
        cls, epoll: int, read_bytes: int, anchor_ns: int, offset_ns: int, late_ns: int, /
    ) -> Self: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    def lock(self) -> Self: ...
    def unlock(self) -> None: ...
    def round(
        self, rows: bytearray, blob: bytearray, /
    ) -> tuple[int, int, int, int, int, list[tuple[int, bytes, int, int, bool, int]]]: ...
    def take(
        self,
        fd: int,
        data: bytes,
        at_ns: int,
        bound_ns: int,
        exact: bool,
        rows: bytearray,
        blob: bytearray,
        /,
    ) -> bool: ...
    def trust(self, offset_ns: int, believe: bool, /) -> None: ...
    def watch(self, fd: int, cells: array[int], /) -> int: ...
    def forget(self, fd: int, /) -> None: ...
    def close(self) -> None: ...
