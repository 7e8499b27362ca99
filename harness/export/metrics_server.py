"""Serves /metrics and /healthz to one scraper at a time, in one thread."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import AF_INET, AF_INET6
from typing import Final

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from harness.errors import ConfigError

STOP_POLL_S: Final = 0.2  # how often the server checks whether to stop
CLIENT_TIMEOUT_S: Final = 1.0  # for a client that connects and sends nothing, or does not read
OK: Final = 200
NOT_FOUND: Final = 404


class MetricsServer(HTTPServer):
    """Serves `page()`, which is called for each scrape and must be fast."""

    timeout = STOP_POLL_S

    def __init__(self, host: str, port: int, page: Callable[[], bytes], flag: str) -> None:
        """Listen at once; port 0: any free port. Raises ConfigError that names `flag`."""
        self.page = page
        self.scrapes = 0
        self._stopped = False
        self.address_family = AF_INET6 if ":" in host else AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"{flag} is {port}, but {host} cannot listen there ({why}): expected a free port "
                f"of this machine; try {flag} 0, which takes any."
            ) from None

    def server_bind(self) -> None:
        """Bind without HTTPServer's reverse lookup of this host's name, which may take seconds."""
        super(HTTPServer, self).server_bind()
        self.port = int(self.server_address[1])

    def serve(self) -> None:
        """Serve until `stop`, then close the socket."""
        try:
            while not self._stopped:
                self.handle_request()
        finally:
            self.server_close()

    def stop(self) -> None:
        """`serve` returns within STOP_POLL_S; from any thread or signal handler."""
        self._stopped = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_TIMEOUT_S
    server: MetricsServer
    server_version = "vllm-harness"
    sys_version = ""

    def do_GET(self) -> None:
        """Handle GET; BaseHTTPRequestHandler answers other methods with 501."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            body = self.server.page()
            self.server.scrapes += 1
            self._answer(OK, body)
        elif path == "/healthz":
            self._answer(OK, b"ok\n")
        else:
            self._answer(NOT_FOUND, b"see /metrics\n")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as above
        """Do not log scrapes."""
