"""GET /metrics and /healthz for one scraper at a time: standard library, one thread, no state."""

from __future__ import annotations

import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import AF_INET, AF_INET6
from typing import TYPE_CHECKING, Final

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from harness.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_S: Final = 0.2  # how often the end is looked for
PATIENCE_S: Final = 1.0  # with a client that connects and says nothing, or does not read
OK, NOT_FOUND = 200, 404


class Pages:
    """Serves `page()`, which must be quick: it is asked for at each scrape."""

    def __init__(self, host: str, port: int, page: Callable[[], bytes], flag: str) -> None:
        """Listens at once; port 0: any free one. Raises ConfigError, naming `flag`."""
        self.scrapes = 0
        self.scraped_s = 0.0  # time.monotonic() of the last scrape
        self._page = page
        self._stopped = False
        try:
            self._http = _Server((host, port), self)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"{flag} is {port}, where {host} cannot be listened at ({why}): expected a free "
                f"port of this machine; try {flag} 0, which takes any."
            ) from None

    @property
    def port(self) -> int:
        """The port that is listened at."""
        return int(self._http.server_address[1])

    def serve(self) -> None:
        """Answer until `stop`; then nothing listens any more."""
        try:
            while not self._stopped:
                self._http.handle_request()
        finally:
            self._http.server_close()

    def stop(self) -> None:
        """`serve` returns within LOOK_S; from any thread or signal handler."""
        self._stopped = True

    def answer(self, path: str) -> tuple[int, bytes]:
        """Status and body of a path."""
        if path == "/metrics":
            body = self._page()
            self.scrapes += 1
            self.scraped_s = time.monotonic()
            return OK, body
        return (OK, b"ok\n") if path == "/healthz" else (NOT_FOUND, b"see /metrics\n")


class _Server(HTTPServer):
    timeout = LOOK_S

    def __init__(self, where: tuple[str, int], pages: Pages) -> None:
        self.pages = pages
        self.address_family = AF_INET6 if ":" in where[0] else AF_INET
        super().__init__(where, _Handler)

    def server_bind(self) -> None:
        """Without HTTPServer's look-up of this machine's name, which may take seconds."""
        super(HTTPServer, self).server_bind()
        self.server_name, self.server_port = "vllm-harness", self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    timeout = PATIENCE_S
    server: _Server
    server_version = "vllm-harness"
    sys_version = ""

    def do_GET(self) -> None:
        """The only method; all else is answered with 501."""
        status, body = self.server.pages.answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as above
        """Scrapes are not logged."""
