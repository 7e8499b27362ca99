"""One scrape of a target's /metrics, with what this host says of the target's processes."""

from __future__ import annotations

from http import HTTPStatus
from math import nan
from typing import TYPE_CHECKING, NamedTuple

from harness.errors import ServerUnreachable, one_line
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


def read_metrics(
    access: Access, answer: Answer, at_ns: int, took_ns: float = nan
) -> ServerSample | None:
    """VLLM's figures in an answer; None without any. Raises ServerUnreachable for a broken page."""
    try:
        return server_sample(answer.body, at_ns, took_ns)
    except ValueError as error:
        page = f"{access.address}/metrics"
        raise ServerUnreachable(
            f"{page} cannot be read ({one_line(str(error))}): expected Prometheus' text format as "
            f"vLLM writes it; try `curl {page}`."
        ) from error


class Scrape:
    """Call it for one scrape. A connection each second would cost the server more: one is kept."""

    def __init__(self, access: Access, now_ns: Callable[[], int]) -> None:
        """`now_ns`: the clock that samples are stamped with."""
        self._access = access
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
            found = read_metrics(self._access, answer, begun + took_ns // 2, took_ns)
        return Scraped(answer, found and self._processes.told(found), took_ns)

    def close(self) -> None:
        self._line.close()
