from typing import Self

class Drain:
    def __new__(
        cls,
        epoll: int,
        table: memoryview[int],
        read_bytes: int,
        anchor_ns: int,
        offset_ns: int,
        patience_ns: int,
        /,
    ) -> Self: ...
    def lock(self) -> None: ...
    def unlock(self) -> None: ...
    def round(
        self, rows: bytearray, blob: bytearray, /
    ) -> tuple[int, int, int, int, int, list[tuple[int, bytes, int, int, bool, int]]]: ...
    def trust(self, offset_ns: int, believe: bool, /) -> None: ...
    def watch(self, fd: int, /) -> int: ...
    def forget(self, fd: int, /) -> None: ...
    def close(self) -> None: ...

def arrived(
    table: memoryview[int],
    stamp_ns: int,
    polled_ns: int,
    read_ns: int,
    drained: bool,
    number: int,
    before_ns: int,
    /,
) -> tuple[int, int, bool]: ...
