"""Where the target is: a URL in, its parts out, or a sentence about what is wrong with it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from harness.errors import ConfigError

DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[\w.-]+|[0-9A-Fa-f:.]+(%\w+)?")  # a name, an IPv4 or an IPv6 address
_ENDPOINT = re.compile(r"/v1/(chat/completions|completions|responses|models)$")


@dataclass(frozen=True, slots=True)
class Address:
    """A server's root. `path` is "" or starts with a slash; `/v1` is never part of it."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme == "https"

    @property
    def here(self) -> bool:
        """Whether it is on this machine, as far as its name says."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def authority(self) -> str:
        """HOST:PORT as a URL and the Host header have it: an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        """The root URL, the port always written."""
        return f"{self.scheme}://{self.authority}{self.path}"

    @classmethod
    def parse(cls, url: str, what: str = "the URL") -> Address:
        """Read `http://HOST[:PORT][/PATH][/v1]`. Raises ConfigError with an example."""
        try:
            parts = urlsplit(url.strip())
            port = parts.port
            host = parts.hostname or ""
            host.encode("idna")  # as every connection will
        except ValueError as error:
            raise ConfigError(
                f"{what} is {url!r} ({error.__cause__ or error}): expected http://HOST:PORT; "
                "try http://127.0.0.1:8000."
            ) from None
        known = parts.scheme in DEFAULT_PORTS
        if not (known and _HOST.fullmatch(host) and re.fullmatch("[!-~]*", parts.path)):
            bare = url.strip().removeprefix("//")
            bare = bare if re.fullmatch(r"(?!.*://)\w[\w.:/-]*", bare) else "127.0.0.1:8000"
            raise ConfigError(
                f"{what} is {url!r}: expected http:// or https:// with a host, without spaces; "
                f"try http://{bare}."
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError(
                f"{what} holds a user, a query or a fragment: expected http://HOST:PORT alone; "
                "an API key goes into the environment, try `export VLLM_API_KEY=...`."
            )
        path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        if endpoint := _ENDPOINT.search(path):
            root = f"{parts.scheme}://{parts.netloc}{path[: endpoint.start()]}"
            raise ConfigError(
                f"{what} is {url!r}, one of a server's endpoints: expected the server; try {root}."
            )
        return cls(parts.scheme, host, port or DEFAULT_PORTS[parts.scheme], path)


def exporter_at(where: str) -> Address:
    """The exporter that --gpu-metrics names, with or without /metrics. Raises ConfigError."""
    if "://" not in where:
        raise ConfigError(
            f"--gpu-metrics is {where!r}: expected local, none or the URL of an exporter; "
            "try --gpu-metrics http://HOST:9400."
        )
    address = Address.parse(where, "--gpu-metrics")
    return replace(address, path=address.path.removesuffix("/metrics"))
