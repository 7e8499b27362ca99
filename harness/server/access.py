"""How to reach the target: address, API key, trusted certificates, timeouts."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.errors import ConfigError
from harness.load.request_fields import check_key, names_in, unsendable
from harness.server.address import Address
from harness.units import SECOND


@dataclass(frozen=True, slots=True)
class TargetAccess:
    """How to reach the target. The key never appears in a repr."""

    address: Address
    api_key: str = field(default="", repr=False)
    key_source: str = ""  # the environment variable that holds it
    ca_file: Path | None = None
    insecure: bool = False
    connect_ns: int = 10 * SECOND
    answer_ns: int = 120 * SECOND  # from sent to the end of the probe's answer
    headers: tuple[tuple[str, str], ...] = ()  # the user's, as they were given
    via: str = ""  # the one of the host's addresses to connect to; "": any

    def __post_init__(self) -> None:
        """Raises ConfigError for a key or a header that HTTP cannot carry, whoever gave it."""
        check_key(self.api_key, self.key_source)
        for name, value in self.headers:
            if wrong := unsendable(value, os.environ):
                raise ConfigError(f"--header {name} {wrong}; try 'X-Key: $KEY' with KEY exported.")

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no file may hold: the key, and what headers take from the environment."""
        secrets = [self.api_key]
        for _, value in self.headers:
            variables, *_ = names_in(value)
            secrets += [os.environ.get(name, "") for name in variables]
        return tuple(filter(None, secrets))

    def tls_context(self) -> ssl.SSLContext:
        """Return a context that verifies unless `insecure`. Raises ConfigError: unreadable CA."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"--ca-file is {self.ca_file} ({_reason(error)}): expected certificates in PEM; "
                "try the file that signed the server's certificate."
            ) from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def replicas(self, metrics: Iterable[str]) -> dict[str, TargetAccess]:
        """Where to read /metrics, by URL: at URLs, or at addresses of the host; (): at the target.

        Another host than the target's is sent neither the key nor the user's headers.
        """
        replicas = {}
        for place in metrics:
            if "://" in place:
                replica = replace(self, address=Address.parse(place))
                if replica.address.host != self.address.host:
                    replica = replace(replica, api_key="", headers=())
                replicas[place] = replica
            else:
                url = str(replace(self.address, host=place))
                replicas[url] = replace(self, via=place)
        return replicas or {str(self.address): self}

    def over_tls(self) -> TargetAccess:
        """Return the same target over TLS, unverified: only to find out whether it speaks TLS."""
        secure = replace(self.address, scheme="https")
        return replace(self, address=secure, ca_file=None, insecure=True)


def _reason(error: OSError) -> str:
    """Return the reason without its number: OpenSSL has a name for it, the system a sentence."""
    reason = getattr(error, "reason", None)
    if reason:
        return str(reason).replace("_", " ").lower()
    return error.strerror or str(error)
