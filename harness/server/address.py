"""Parses the target's URL, or explains in a sentence what is wrong with it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from harness.errors import ConfigError
from harness.records.redact import HIDDEN, redact_text

LOOPBACK: Final = "127.0.0.1"  # where our own pages without a login are served
LOOPBACK_SOURCES: Final = 64  # of 127.0.0.0/8, which a client here may send from
PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_PORTS_OF_CONNECTIONS: Final = range(32_768, 61_000)  # Linux's
UNUSUAL_PORT: Final = 10_000  # most programs that have a port of their own have one below
MAX_PORT: Final = 65_535
ROW_TRIES: Final = 1_000
DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[\w.-]+|[0-9A-Fa-f:.]+(%\w+)?")  # a name, an IPv4 or an IPv6 address
_PATH = re.compile("[!-~]*")
_PORT = re.compile(r":?([1-9][0-9]{1,4})", re.ASCII)
_NO_SCHEME = re.compile(r"(?!.*://)\w[\w.:/-]*")
_ENDPOINT = re.compile(r"/v1/(chat/completions|completions|responses|messages|models)$")
_OTHER_ENDPOINT = re.compile(r"/(metrics|health|version|docs|tokenize)$")  # of a server itself
TARGET: Final = "the URL"


@dataclass(frozen=True, slots=True)
class Address:
    """A server's root. `path` is "" or starts with a slash; `/v1` is never part of it."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine, as far as the name tells."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def authority(self) -> str:
        """HOST:PORT as in a URL and in the Host header: an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    @classmethod
    def parse(cls, url: str, what: str = TARGET) -> Address:
        """Parse `http://HOST[:PORT][/PATH][/v1]`. Raises ConfigError with an example."""
        shown = _without_secrets(url)
        try:
            parts = urlsplit(url.strip())
            port = parts.port
            host = parts.hostname or ""
            host.encode("idna")  # every connection will do this, and fail with a traceback
        except ValueError as error:
            raise ConfigError(
                f"{what} is {shown!r} ({error.__cause__ or error}): expected http://HOST:PORT; "
                "try http://127.0.0.1:8000."
            ) from None
        # `urlsplit` drops line breaks and tabs from the middle of a URL
        known = parts.scheme in DEFAULT_PORTS and url.strip().isprintable()
        if not (known and _HOST.fullmatch(host) and _PATH.fullmatch(parts.path)):
            raise ConfigError(
                f"{what} is {shown!r}: expected http:// or https:// with a host, without spaces; "
                f"try http://{_host_and_port(url)}."
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError(
                f"{what} holds a user, a query or a fragment: expected http://HOST:PORT alone; "
                "an API key goes into the environment, try `export VLLM_API_KEY=...`."
            )
        path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        endpoint = _ENDPOINT.search(path)
        if what == TARGET:  # other options are URLs of metrics
            endpoint = endpoint or _OTHER_ENDPOINT.search(path)
        if endpoint:
            root = f"{parts.scheme}://{parts.netloc}{path[: endpoint.start()]}"
            raise ConfigError(
                f"{what} is {url!r}, one of a server's endpoints: expected the server; try {root}."
            )
        return cls(parts.scheme, host, port or DEFAULT_PORTS[parts.scheme], path)


def _without_secrets(url: str) -> str:
    """Return it as a message may show it: without a user, a query or a fragment."""
    plain = re.split("[?#]", redact_text(url))[0]
    return re.sub(r"^(\w+:/+|)\S*@", rf"\1{HIDDEN}@", plain)


def _host_and_port(text: str) -> str:
    """Return what was probably meant by a text that is no URL: a port, or all but http://."""
    bare = text.strip().removeprefix("//")
    port = _PORT.fullmatch(bare)
    if port:
        return f"{LOOPBACK}:{port[1]}"
    if _NO_SCHEME.fullmatch(bare):
        return bare
    return f"{LOOPBACK}:8000"


def parse_exporter_url(where: str) -> Address:
    """Parse the URL of --gpu-metrics, with or without /metrics. Raises ConfigError."""
    if "://" not in where:
        raise ConfigError(
            f"--gpu-metrics is {where!r}: expected local, none or the URL of an exporter; "
            "try --gpu-metrics http://HOST:9400."
        )
    address = Address.parse(where, "--gpu-metrics")
    return replace(address, path=address.path.removesuffix("/metrics"))


def group_by_family(infos: list[Any]) -> list[list[Any]]:
    """Group the results of `getaddrinfo` by family, in its order of preference."""
    families = [info[0] for info in infos]
    ordered = sorted(infos, key=lambda info: families.index(info[0]))
    return [list(group) for _, group in groupby(ordered, key=lambda info: info[0])]


def addresses_of(address: Address) -> tuple[str, ...]:
    """Return the addresses that connections are spread over."""
    import socket  # noqa: PLC0415 - the command line parses addresses; --help does without sockets

    try:
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError:  # the name resolved a moment ago; a hiccup of DNS is no reason to stop
        return ()
    preferred = group_by_family(infos)[0]
    return tuple(info[4][0] for info in preferred)


def check_port(flag: str, host: str, port: int) -> None:
    """A server can listen there. Raises ConfigError now rather than during the load."""
    import socket  # noqa: PLC0415 - as above

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        # The servers set the same option, so a port in TIME_WAIT counts as free here too.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
            sock.listen()
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or "no such port"
            raise ConfigError(
                f"{flag} is {port} ({why}): expected a free port of {host}; "
                f"try {flag} {free_port()}."
            ) from None


def free_port() -> int:
    """Return a port of the loopback that nobody uses now. Raises ConfigError."""
    return free_ports(1, frozenset()).start


def ports_of_connections() -> range | None:
    """Return the ports that the kernel gives to connections; None where it does not say."""
    try:
        first, last = map(int, PORT_RANGE.read_text().split())
    except OSError:
        return None
    return range(first, last + 1)


def free_ports(count: int, taken: AbstractSet[int]) -> range:
    """Return ports of the loopback in a row that nobody uses now, none of which is `taken`.

    They lie below those that the kernel gives to connections, where there is room: a load holds
    thousands of these, and one may be given away before a server that loads a model listens there.
    Raises ConfigError.
    """
    from random import SystemRandom  # noqa: PLC0415 - as above

    draw = SystemRandom()  # two processes that were seeded alike must not draw the same
    firsts = _first_ports(count)
    for _ in range(ROW_TRIES):
        first = draw.choice(firsts)
        row = range(first, first + count)
        if taken.isdisjoint(row) and all(map(_is_free, row)):
            return row
    raise ConfigError(
        f"no {count} ports in a row of {LOOPBACK} were free in {ROW_TRIES:,} tries: expected some "
        f"from {firsts.start} on; try again once other programs have ended."
    )


def _first_ports(count: int) -> range:
    """Where a row may begin."""
    given = ports_of_connections() or USUAL_PORTS_OF_CONNECTIONS
    below = range(UNUSUAL_PORT, given.start - count + 1)
    if below:
        return below
    return range(UNUSUAL_PORT, MAX_PORT - count + 2)


def _is_free(port: int) -> bool:
    import socket  # noqa: PLC0415 - as above

    try:
        with socket.create_server((LOOPBACK, port)):
            return True
    except OSError:
        return False
