"""How to reach the target: its address, its key, whom to trust, how long to wait."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from harness.errors import ConfigError
from harness.units import SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from harness.server.address import Address


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the target. The key never shows in a repr."""

    address: Address
    api_key: str = field(default="", repr=False)
    key_source: str = ""  # the environment variable that it came from
    ca_file: Path | None = None
    insecure: bool = False
    connect_ns: int = 10 * SECOND
    answer_ns: int = 120 * SECOND  # from sent to the end of the probe's answer

    def tls_context(self) -> ssl.SSLContext:
        """Verification is on unless `insecure`. Raises ConfigError for an unreadable CA file."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"--ca-file is {self.ca_file} ({_why(error)}): expected certificates in PEM; "
                "try the file that signed the server's certificate."
            ) from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def as_tls(self) -> Access:
        """The same place by TLS, whatever its certificate says: only to see if it answers."""
        secure = replace(self.address, scheme="https")
        return replace(self, address=secure, ca_file=None, insecure=True)


def _why(error: OSError) -> str:
    """In words, without the number: OpenSSL has a name for it, the system a sentence."""
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else error.strerror or str(error)
