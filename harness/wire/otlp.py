"""Reads OTLP traces that vLLM sends over HTTP: the latencies in the span of each request.

Protobuf's wire format has four kinds of fields, of which a span's attributes use three; reading
them here saves two packages (docs/dependencies.md). Field numbers: opentelemetry-proto 1.x,
trace.proto and common.proto. Unknown fields are skipped, whatever they contain.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from harness.diagnosis.ttft_split import RequestTrace

Value = int | bytes

# vllm/tracing/utils.py, SpanAttributes
REQUEST_ID: Final = "gen_ai.request.id"
TTFT: Final = "gen_ai.latency.time_to_first_token"
QUEUE: Final = "gen_ai.latency.time_in_queue"
PREFILL: Final = "gen_ai.latency.time_in_model_prefill"

RESOURCE_SPANS, SCOPE_SPANS, SPANS, ATTRIBUTES = 1, 2, 2, 9
KEY, VALUE = 1, 2
STRING, INT, DOUBLE = 1, 3, 4
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BITS: Final = 63


def traces(body: bytes) -> list[RequestTrace]:
    """Return the requests in an ExportTraceServiceRequest. Raises ValueError."""
    found = []
    for resource in _messages(body, RESOURCE_SPANS):
        for scope in _messages(resource, SCOPE_SPANS):
            for span in _messages(scope, SPANS):
                values = dict(map(_attribute, _messages(span, ATTRIBUTES)))
                if isinstance(name := values.get(REQUEST_ID), str):
                    seconds = (_number(values.get(key)) for key in (TTFT, QUEUE, PREFILL))
                    found.append(RequestTrace(name, *seconds))
    return found


def _number(value: str | float | None) -> float:
    return float(value) if isinstance(value, float | int) else float("nan")


def _attribute(message: bytes) -> tuple[str, str | float | None]:
    """Return (name, value) of a KeyValue; the value is None for a kind that is not used here."""
    name, value = map(dict(_fields(message)).get, (KEY, VALUE))
    key = name.decode(errors="replace") if isinstance(name, bytes) else ""
    return key, _any_value(value) if isinstance(value, bytes) else None


def _any_value(message: bytes) -> str | float | None:
    for number, field in _fields(message):
        if number == STRING and isinstance(field, bytes):
            return field.decode(errors="replace")
        if number == DOUBLE and isinstance(field, bytes) and len(field) == struct.calcsize("<d"):
            return float(struct.unpack("<d", field)[0])
        if number == INT and isinstance(field, int):
            return field
    return None


def _messages(message: bytes, wanted: int) -> Iterator[bytes]:
    for number, field in _fields(message):
        if number == wanted and isinstance(field, bytes):
            yield field


def _fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yield (field number, value): varints as integers, everything else as its bytes."""
    at = 0
    while at < len(message):
        # The tag's low three bits are the wire type, the rest is the field number. Each field has
        # its length or a fixed one, so that unknown fields can be skipped; a length that exceeds
        # the message is an error and not a short read.
        tag, at = _varint(message, at)
        kind, size = tag & 7, 0
        if kind == VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == BYTES:
            size, at = _varint(message, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"protobuf wire type {kind} at byte {at}: expected 0, 1, 2 or 5")
        if at + size > len(message):
            raise ValueError(f"a field of {size} bytes at byte {at} of {len(message)}")
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift <= MAX_VARINT_BITS:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follows
            return value, at
    raise ValueError(f"an unfinished number at byte {at} of {len(message)}")
