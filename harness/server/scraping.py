"""One scrape of a target's /metrics, with what this host says of the target's processes."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from harness.server.exchange import Line
from harness.server.processes import ServerProcesses
from harness.wire.vllm_metrics import server_sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.measure.samples import ServerSample
    from harness.server.access import Access
    from harness.server.exchange import Answer


class Scraped(NamedTuple):
    """What came of it; `sample` is None where the answer has no figure of vLLM's."""

    answer: Answer
    sample: ServerSample | None
    took_ns: int


class Scrape:
    """Call it for one scrape. A connection each second would cost the server more: one is kept."""

    def __init__(self, access: Access, now_ns: Callable[[], int]) -> None:
        """`now_ns`: the clock that samples are stamped with."""
        self._line = Line(access)
        self._processes = ServerProcesses(access.address)
        self._now_ns = now_ns

    def __call__(self) -> Scraped:
        """One reading, stamped with the middle of the exchange. Raises ServerUnreachable."""
        begun = self._now_ns()
        answer = self._line.ask("/metrics")
        took_ns = self._now_ns() - begun
        found = None
        if answer.status == HTTPStatus.OK:
            found = server_sample(answer.body, begun + took_ns // 2, took_ns)
        return Scraped(answer, found and self._processes.told(found), took_ns)

    def close(self) -> None:
        """Hang up."""
        self._line.close()
