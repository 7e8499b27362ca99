from array import array

LAYOUT: int

def pack(
    sent_ns: int, at_ns: array[int], not_before_ns: array[int], tokens: array[int], /
) -> tuple[bytes, bytes, bytes]: ...
def unpack(
    sent_ns: int, n: int, at: bytes, lags: bytes, tokens: bytes, /
) -> tuple[bytes, bytes, bytes]: ...
