"""A table of its own in Locust's web UI: TTFT, ITL, TPOT and e2e with true percentiles.

Locust's own table keeps what it means: requests, their rate, failures. Its percentiles are rounded
(147 ms becomes 150) and know nothing of tokens; ours come from the records.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from flask import Blueprint, Response, request
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from harness.measure.search.statistics import QUANTILES
from harness.server.address import LOOPBACK
from harness.webpage.origin import keep_out

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from locust.env import Environment
    from locust.web import WebUI

    from harness.webpage.live_tables import LatencyTable, SloTable

KEY: Final = "latencies"
COLUMNS: Final = {
    "metric": "Latency, ms",
    "n": "Observations",
    **{name: name.upper() for name in QUANTILES},
    "max": "Max",
}
SLO_COLUMNS: Final = {
    "slo": "SLO",
    "so_far": "So far",
    "over": "Over the limit",
    "allowed": "Allowed",
    "n": "Observations",
}
CSV_PATH: Final = "/latencies/requests.csv"
METRICS_PATH: Final = "/harness/metrics"


@dataclass(frozen=True, slots=True)
class Shown:
    """One tab with one table."""

    key: str
    title: str
    columns: Mapping[str, str]
    rows: Callable[[], Sequence[Mapping[str, str | int]]]

    def structure(self) -> list[dict[str, str]]:
        """Columns as Locust's page wants them."""
        return [{"key": key, "title": title} for key, title in self.columns.items()]


def create(environment: Environment, port: int) -> WebUI:
    """Locust's web UI on this machine; 0: any free port. It serves once it is started."""
    return environment.create_web_ui(LOOPBACK, port, delayed_start=True)


def install(
    environment: Environment, table: LatencyTable, slos: SloTable, metrics: Callable[[], bytes]
) -> None:
    """In the environment's web UI, if it has one: tabs, `extended_stats`, a CSV, `metrics`.

    From now on other sites' pages are kept out of all of it.
    """
    web_ui = environment.web_ui
    if web_ui is None or web_ui.app is None:
        return
    keep_out(web_ui)
    shown: list[Shown] = [Shown(KEY, "Token latencies", COLUMNS, table.rows)]
    if slos.slos:
        shown.append(Shown("slos", "SLOs", SLO_COLUMNS, slos.rows))
    web_ui.template_args |= {
        "extended_tabs": [{"title": s.title, "key": s.key} for s in shown],
        "extended_tables": [{"key": s.key, "structure": s.structure()} for s in shown],
        "extended_csv_files": [{"href": f".{CSV_PATH}", "title": "Download token latencies CSV"}],
    }
    environment.events.reset_stats.add_listener(table.clear)
    environment.events.reset_stats.add_listener(slos.clear)
    _routes(web_ui, table, shown, metrics)


def _routes(
    web_ui: WebUI, table: LatencyTable, shown: list[Shown], metrics: Callable[[], bytes]
) -> None:
    blueprint = Blueprint("harness", __name__)

    @blueprint.route(CSV_PATH)
    @web_ui.auth_required_if_enabled
    def latencies_csv() -> Response:
        return Response(as_csv(table.rows()), mimetype="text/csv")

    @blueprint.route(METRICS_PATH)
    @web_ui.auth_required_if_enabled
    def prometheus() -> Response:
        return Response(metrics(), content_type=CONTENT_TYPE_PLAIN_0_0_4)

    def extend(response: Response) -> Response:
        """Add our rows to what the page polls every two seconds."""
        if request.path.endswith("/stats/requests") and response.is_json:
            report: dict[str, Any] = response.get_json()
            report["extended_stats"] = [{"key": s.key, "data": s.rows()} for s in shown]
            response.set_data(json.dumps(report))
        return response

    app = web_ui.app
    if app is not None:
        app.register_blueprint(blueprint)
        app.after_request(extend)


def as_csv(rows: list[dict[str, str | int]]) -> str:
    """The table with its keys as header, one line per latency, in ms."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ["key", *COLUMNS], extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
