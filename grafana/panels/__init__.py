"""PANELS: the dashboards by the name of their file, and every expression in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from panels import client, gpu, knee, latency, overview, server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from panels.model import Dashboard

PANELS: Final[dict[str, Dashboard]] = {
    "overview": overview.DASHBOARD,
    "knee": knee.DASHBOARD,
    "latency": latency.DASHBOARD,
    "server": server.DASHBOARD,
    "gpu": gpu.DASHBOARD,
    "client": client.DASHBOARD,
}


def expressions() -> Iterator[tuple[tuple[str, str, str], str]]:
    """((dashboard, panel or note, legend or ""), PromQL), each query once."""
    for name, dashboard in PANELS.items():
        for row in dashboard.rows:
            for panel in row.panels:
                yield from (((name, panel.title, q.legend), q.expr) for q in panel.queries)
        for note in dashboard.notes:
            yield (name, note.name, ""), note.expr
