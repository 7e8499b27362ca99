"""Where the target is: a URL in, its parts out, or a sentence about what is wrong with it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from harness.errors import ConfigError

DEFAULT_PORTS = {"http": 80, "https": 443}


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
    def parse(cls, url: str) -> Address:
        """Read `http://HOST[:PORT][/PATH][/v1]`. Raises ConfigError with an example."""
        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError as error:
            raise ConfigError(
                f"the URL is {url!r} ({error}): expected http://HOST:PORT; "
                "try http://127.0.0.1:8000."
            ) from None
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
            bare = url.strip().removeprefix("//")
            hint = bare if "://" not in bare and bare[:1].isalnum() else "127.0.0.1:8000"
            raise ConfigError(
                f"the URL is {url!r}: expected http:// or https:// with a host; try http://{hint}."
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError(
                "the URL holds a user, a query or a fragment: expected http://HOST:PORT alone; "
                "an API key goes into the environment, try `export VLLM_API_KEY=...`."
            )
        path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        return cls(parts.scheme, parts.hostname, port or DEFAULT_PORTS[parts.scheme], path)
