"""OTLP traces: what vLLM's spans say of requests, and bodies that are none."""

from __future__ import annotations

import gzip
import math
import struct
from http import HTTPStatus
from typing import TYPE_CHECKING

import gevent.socket
import numpy as np
import pytest
from measure_tables import record, table

from harness.core.typed_json import to_json
from harness.diagnosis.ttft_split import RequestTrace, traced_split
from harness.records import names
from harness.records.folder_reader import read_run
from harness.records.folder_writer import RunFolder
from harness.records.request_record import request_id, request_key
from harness.senders.trace_receiver import TraceReceiver
from harness.wire.otlp import PREFILL, QUEUE, REQUEST_ID, TTFT, traces

if TYPE_CHECKING:
    from pathlib import Path

S = 10**9


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, content: bytes) -> bytes:
    """A field of bytes: text, a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def attribute(name: str, value: object) -> bytes:
    """A KeyValue of a string, an integer or a double."""
    kinds = {
        str: lambda v: field(1, v.encode()),
        int: lambda v: varint(3 << 3) + varint(v),
        float: lambda v: varint(4 << 3 | 1) + struct.pack("<d", v),
    }
    return field(9, field(1, name.encode()) + field(2, kinds[type(value)](value)))


def request(*spans: bytes) -> bytes:
    """An ExportTraceServiceRequest: resource (skipped), scope (skipped), spans."""
    scope = field(1, b"\x0a\x04vllm") + b"".join(field(2, span) for span in spans)
    return field(1, field(1, b"skipped") + field(2, scope) + field(3, b"schema"))


def span(name: str, ttft: object = 0.5, queue: object = 0.25, prefill: object = 0.125) -> bytes:
    """As vLLM sends it: ids, times (fixed64), other attributes among ours."""
    times = varint(7 << 3 | 1) + bytes(8) + varint(8 << 3 | 1) + bytes(8) + varint(16 << 3 | 5)
    said = [("gen_ai.usage.prompt_tokens", 300), (TTFT, ttft), (REQUEST_ID, name),
            (QUEUE, queue), (PREFILL, prefill)]  # fmt: skip
    return field(1, b"t" * 16) + field(5, b"llm_request") + times + bytes(4) + b"".join(
        attribute(key, value) for key, value in said
    )  # fmt: skip


TWO = request(span("cmpl-a-0-1-0"), span("chatcmpl-a-0-2", 1, 0, 0.5))


def test_spans_of_requests() -> None:
    """Two of vLLM's; a span of something else says nothing."""
    other = field(5, b"load_model") + attribute("code.function", "load")
    assert traces(TWO + request(other)) == [
        RequestTrace("cmpl-a-0-1-0", 0.5, 0.25, 0.125),
        RequestTrace("chatcmpl-a-0-2", 1.0, 0.0, 0.5),
    ]  # fmt: skip
    (unsaid,) = traces(request(span("x", "soon")))
    assert math.isnan(unsaid.ttft_s)


def test_a_body_cut_short_is_refused() -> None:
    """Never half a request: the outermost message lacks bytes."""
    for cut in range(1, len(TWO)):
        with pytest.raises(ValueError, match="byte"):
            traces(TWO[:cut])


@pytest.mark.parametrize("body", [b"\x0b", b"\xff" * 11, b"\x0a\x7f", b"{}"])
def test_bytes_that_are_no_protobuf(body: bytes) -> None:
    """Groups (long gone), endless numbers, lengths beyond the end, JSON."""
    with pytest.raises(ValueError, match="byte"):
        traces(body)


@pytest.mark.parametrize(
    ("told", "want"),
    [
        ("cmpl-1f2e-3-41-0", (3, 41)),
        ("chatcmpl-1f2e-0-7", (0, 7)),
        (request_id("1f2e", 12, 0), (12, 0)),
        ("cmpl-77aa-3-41-0", None),
        ("cmpl-1f2e-x-41-0", None),
        ("cmpl-1f2e-3", None),
    ],
)
def test_whose_trace_it_is(told: str, want: tuple[int, int] | None) -> None:
    """The server's id holds ours, with its own words around it."""
    assert request_key("1f2e", told) == want


def test_the_split_is_of_requests_that_have_a_trace() -> None:
    """Three sent in the window, two traced: means in ms."""
    records = [record(n, 1000 * n, [1000 * n + 600, 1000 * n + 700]) for n in range(4)]
    told = [RequestTrace(f"cmpl-r-0-{n}-0", 0.5, 0.25 * n, 0.125) for n in (0, 1, 2)]
    got = traced_split(table(*records), told, "r", (S, 9 * S))
    means = {k: v for k, v in to_json(got).items() if v is not None and "_p" not in k}
    assert means == {
        "n": 2, "sent": 3, "queue_ms": 375.0, "prefill_ms": 125.0, "rest_ms": 0.0, "ttft_ms": 500.0,
        "residual_ms": 100.0, "client_ms": 600.0,
    }  # fmt: skip
    assert traced_split(table(*records), [], "r", (S, 9 * S)) is None


def test_quantiles_over_the_same_requests() -> None:
    """Of 200 the p95 is told; each part's own, not what adds up."""
    records = [record(n, n, [n + 600.0]) for n in range(1, 201)]
    told = [RequestTrace(f"r-0-{n}", 0.5, n / 1e3, 0.0) for n in range(1, 201)]
    got = traced_split(table(*records), told, "r", (0, S))
    want = np.quantile(np.arange(1, 201), [0.5, 0.95], method="higher")
    assert got is not None
    assert [got.queue_p50_ms, got.queue_p95_ms] == pytest.approx(want.tolist())


def test_the_receiver(tmp_path: Path) -> None:
    """Plain and packed bodies are taken, others refused; what came lies in traces.jsonl."""
    folder = RunFolder.create(tmp_path / "run")
    lines = folder.lines(names.TRACES)
    receiver = TraceReceiver(0, lambda found: len([lines.append(t) for t in found]))
    answers = []
    for path, body, packed in [
        ("/v1/traces", TWO, False),
        ("/v1/traces", gzip.compress(TWO), True),
        ("/v1/traces", b"{}", False),
        ("/v1/traces", b"no gzip", True),
        ("/v1/metrics", TWO, False),
    ]:
        answers.append(post(receiver.port, path, body, packed=packed))
    receiver.close(expected=3)
    lines.close()
    assert answers == [
        HTTPStatus.OK, HTTPStatus.OK, HTTPStatus.BAD_REQUEST, HTTPStatus.BAD_REQUEST,
        HTTPStatus.NOT_FOUND,
    ]  # fmt: skip
    assert receiver.taken == 4
    folder.write_json(names.RUN, {})
    assert read_run(folder.path).traces == traces(TWO) * 2


def test_others_traces_are_not_ours() -> None:
    """The server's earlier requests come first: the end waits for ours all the same."""
    ours = iter([0, 2])
    receiver = TraceReceiver(0, lambda _: next(ours))
    post(receiver.port, "/v1/traces", TWO, packed=False)
    ending = gevent.spawn(receiver.close, expected=2)
    gevent.sleep(0.3)
    assert (receiver.taken, ending.ready()) == (0, False)
    post(receiver.port, "/v1/traces", TWO, packed=False)
    ending.join(5)
    assert (receiver.taken, ending.ready()) == (2, True)


def post(port: int, path: str, body: bytes, *, packed: bool) -> int:
    """One POST, from this thread's own loop."""
    with gevent.socket.create_connection(("127.0.0.1", port)) as line:
        coding = "Content-Encoding: gzip\r\n" if packed else ""
        line.sendall(
            f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{coding}"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        answer = b""
        while piece := line.recv(4096):
            answer += piece
    return int(answer.split()[1])
