"""Scrapes a target's /metrics, and adds the CPU time of its processes on this host."""

from __future__ import annotations

from http import HTTPStatus
from math import nan
from typing import TYPE_CHECKING, NamedTuple

from harness.errors import ServerUnreachable, one_line
from harness.server.http_exchange import HttpConnection
from harness.server.server_processes import ServerProcesses
from harness.wire.vllm_metrics import server_sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.measure.records.samples import ServerSample
    from harness.server.access import TargetAccess
    from harness.server.http_exchange import HttpAnswer


class ScrapeResult(NamedTuple):
    """The result of a scrape; `sample` is None if the answer has no metric of vLLM's."""

    answer: HttpAnswer
    sample: ServerSample | None
    took_ns: int


def read_metrics(
    access: TargetAccess, answer: HttpAnswer, at_ns: int, took_ns: float = nan
) -> ServerSample | None:
    """Return vLLM's metrics in an answer, None without any. Raises ServerUnreachable: malformed."""
    try:
        return server_sample(answer.body, at_ns, took_ns)
    except ValueError as error:
        page = f"{access.address}/metrics"
        raise ServerUnreachable(
            f"{page} cannot be read ({one_line(str(error))}): expected Prometheus' text format as "
            f"vLLM writes it; try `curl {page}`."
        ) from error


def without_metrics(where: str, status: int) -> str:
    """What a page without any metric of vLLM's says."""
    return f"{where}/metrics answers {status} without a metric of vLLM's"


class MetricsScraper:
    """Call it for one scrape; it keeps one connection, which is cheaper for the server."""

    def __init__(self, access: TargetAccess, now_ns: Callable[[], int]) -> None:
        """`now_ns`: the clock that samples are stamped with."""
        self._access = access
        self._connection = HttpConnection(access)
        self._processes = ServerProcesses(access.address)
        self._now_ns = now_ns

    def __call__(self) -> ScrapeResult:
        """Return one reading, stamped with the middle of the exchange. Raises ServerUnreachable."""
        start = self._now_ns()
        answer = self._connection.fetch("/metrics")
        took_ns = self._now_ns() - start
        found = None
        if answer.status == HTTPStatus.OK:
            found = read_metrics(self._access, answer, start + took_ns // 2, took_ns)
        return ScrapeResult(answer, found and self._processes.with_cpu_times(found), took_ns)

    def close(self) -> None:
        self._connection.close()
