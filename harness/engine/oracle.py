"""Records what was sent and when: the reference for checking a client's timestamps.

Per request: the kernel's timestamp of the segment that completed it and, for each send, the time
just before and just after it and its number of tokens (CLOCK_REALTIME, ns). The most recent
requests are kept.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import Any, Final

KEPT: Final = 20_000  # requests; at 128 tokens each about 60 MB


class SendLog:
    """One request's sends."""

    __slots__ = ("after_ns", "arrived_ns", "before_ns", "client_id", "request_id", "tokens")

    def __init__(self, request_id: str, client_id: str, arrived_ns: int) -> None:
        """`client_id`: the X-Request-Id header. `arrived_ns`: the kernel's timestamp."""
        self.request_id = request_id
        self.client_id = client_id
        self.arrived_ns = arrived_ns
        self.before_ns = array("q")
        self.after_ns = array("q")
        self.tokens = array("q")

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "client_id": self.client_id,
            "arrived_ns": self.arrived_ns,
            "before_ns": self.before_ns.tolist(),
            "after_ns": self.after_ns.tolist(),
            "tokens": self.tokens.tolist(),
        }


class Oracle:
    """A ring of the KEPT most recent requests."""

    def __init__(self) -> None:
        self.requests: deque[SendLog] = deque(maxlen=KEPT)

    def begin(self, request_id: str, client_id: str, arrived_ns: int) -> SendLog:
        sends = SendLog(request_id, client_id, arrived_ns)
        self.requests.append(sends)
        return sends

    def to_json(self) -> dict[str, Any]:
        return {"kept": KEPT, "requests": [sends.to_json() for sends in self.requests]}
