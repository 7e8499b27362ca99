"""How long each phase of a request may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from harness.units import SECOND

DEFAULT_FIRST_TOKEN_NS: Final = 120 * SECOND
PROBE_NS: Final = 60 * SECOND  # a loaded vLLM answers the probe late


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long each phase of a request may take before it counts as failed.

    A stream's first token is waited for as the first byte of its body: servers may send the head
    long before. Comments, which keep an idle connection open, do not count.
    """

    connect_ns: int = 10 * SECOND  # for name, TCP and TLS together
    first_token_ns: int = DEFAULT_FIRST_TOKEN_NS  # from sent
    idle_ns: int = 60 * SECOND  # between two reads of the body that hold more than comments
    total_ns: int = 600 * SECOND  # from sent to done

    @property
    def connect_s(self) -> float:
        """As sockets take it."""
        return self.connect_ns / SECOND

    @property
    def answer_ns(self) -> int:
        """For answers to the probe: a minute, unless --first-token-timeout was given."""
        wait_ns = self.first_token_ns
        if wait_ns == DEFAULT_FIRST_TOKEN_NS:
            wait_ns = PROBE_NS
        return min(wait_ns, self.total_ns)
