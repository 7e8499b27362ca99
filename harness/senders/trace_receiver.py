"""Takes the server's traces while a load runs: OTLP over HTTP, POST /v1/traces.

vLLM sends them when it is started with `--otlp-traces-endpoint http://HOST:PORT/v1/traces` and
OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf. What cannot be read is refused; a
server is never kept waiting.
"""

from __future__ import annotations

import gzip
import time
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import gevent
from gevent.pywsgi import WSGIServer

from harness.wire.otlp import traces

if TYPE_CHECKING:
    from harness.diagnosis.ttft_split import RequestTrace

HOST: Final = "127.0.0.1"  # anybody may post here: it is for this machine only
PATH: Final = "/v1/traces"
MOST_BYTES: Final = 64 << 20
LATEST_S: Final = 6.0  # OpenTelemetry's batches leave every 5 s


class TraceReceiver:
    """Give it a port (0: any) and what is to be done with each batch of traces."""

    def __init__(self, port: int, on_traces: Callable[[list[RequestTrace]], int]) -> None:
        """Listen. `on_traces` says how many were of ours: the server has others' as well.

        Raises OSError when the port is taken.
        """
        self.taken = 0  # of ours
        self._latest_s = 0.0  # when some of them came
        self._on_traces = on_traces
        self._server = WSGIServer((HOST, port), self._answer, log=None, error_log=None)
        self._server.start()

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def close(self, expected: int = 0) -> None:
        """Stop, when all of `expected` requests are here or none came for a while."""
        self._latest_s = time.monotonic()
        while self.taken < expected and time.monotonic() < self._latest_s + LATEST_S:
            gevent.sleep(0.1)
        self._server.stop(timeout=1)

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        status = "200 OK"
        if environ["REQUEST_METHOD"] != "POST" or environ["PATH_INFO"] != PATH:
            status = "404 Not Found"
        else:
            try:
                found = traces(_body(environ))
            except (EOFError, OSError, ValueError, zlib.error):
                status = "400 Bad Request"
            else:
                if ours := self._on_traces(found):
                    self.taken += ours
                    self._latest_s = time.monotonic()
        start(status, [("Content-Type", "application/x-protobuf"), ("Content-Length", "0")])
        return []


def _body(environ: dict[str, Any]) -> bytes:
    """The request's body, unpacked. Raises ValueError when it is too long."""
    raw: bytes = environ["wsgi.input"].read(MOST_BYTES + 1)
    if environ.get("HTTP_CONTENT_ENCODING") == "gzip":
        with gzip.GzipFile(fileobj=BytesIO(raw)) as packed:
            raw = packed.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES} bytes")
    return raw
