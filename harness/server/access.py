"""How to reach the target: address, API key, trusted certificates, timeouts."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.errors import ConfigError
from harness.load.request_fields import names_in
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

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no file may hold: the key, and what headers take from the environment."""
        named = [
            os.environ.get(name, "") for _, value in self.headers for name in names_in(value)[0]
        ]
        return tuple(filter(None, (self.api_key, *named)))

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
        found = {}
        for one in metrics:
            if "://" in one:
                there = replace(self, address=Address.parse(one))
                other = there.address.host != self.address.host
                found[one] = replace(there, api_key="", headers=()) if other else there
            else:
                found[str(replace(self.address, host=one))] = replace(self, via=one)
        return found or {str(self.address): self}

    def over_tls(self) -> TargetAccess:
        """Return the same target over TLS, unverified: only to find out whether it speaks TLS."""
        secure = replace(self.address, scheme="https")
        return replace(self, address=secure, ca_file=None, insecure=True)


def _reason(error: OSError) -> str:
    """Return the reason without its number: OpenSSL has a name for it, the system a sentence."""
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else error.strerror or str(error)
