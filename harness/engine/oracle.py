"""Records what was sent and when: the reference for checking a client's timestamps.

Per request: the kernel's timestamp of the segment that completed it and, for each send, the time
just before and just after it and its number of tokens (CLOCK_REALTIME, ns). The most recent
requests are kept.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

KEPT: Final = 20_000  # requests; at 128 tokens each about 60 MB


def _numbers() -> array[int]:
    return array("q")


@dataclass(slots=True)
class SendLog:
    """One request's sends."""

    id: str
    client_id: str  # the X-Request-Id header
    arrived_ns: int  # the kernel's timestamp
    before_ns: array[int] = field(default_factory=_numbers)
    after_ns: array[int] = field(default_factory=_numbers)
    tokens: array[int] = field(default_factory=_numbers)

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: v.tolist() if isinstance(v, array) else v for name, v in values.items()}


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
