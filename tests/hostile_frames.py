"""Frames of the record files that nobody wrote."""

from __future__ import annotations

import zlib

import msgpack

from harness.records.codec import NUMBER_FIELDS


def frame(payload: bytes) -> bytes:
    """With the right checksum and length."""
    crc, size = (number.to_bytes(4, "big") for number in (zlib.crc32(payload), len(payload)))
    return b"\x93\x01\xce" + crc + b"\xc6" + size + payload


def hostile(n: int) -> bytes:
    """A frame of 84 bytes that claims n events, all alike."""
    alike = b"c" + bytes(8)
    return frame(msgpack.packb([*[0] * len(NUMBER_FIELDS), "ok", "", "", n, alike, alike, alike]))
