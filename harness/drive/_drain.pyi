from array import array

def drain(
    epoll: int,
    table: array[int],
    rows: bytearray,
    blob: bytearray,
    most: int,
    read_bytes: int,
    number: int,
    polled_ns: int,
    before_ns: int,
    offset_ns: int,
    anchor_ns: int,
    believe: bool,
    /,
) -> tuple[int, int, int, int, int, list[tuple[int, bytes, int, int, bool, int]]]: ...
def watch(epoll: int, fd: int, /) -> None: ...
def arrived(
    table: array[int],
    stamp_ns: int,
    polled_ns: int,
    read_ns: int,
    drained: bool,
    number: int,
    before_ns: int,
    /,
) -> tuple[int, int, bool]: ...
