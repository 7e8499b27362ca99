"""A table of its own in Locust's web UI: TTFT, ITL, TPOT and e2e with true percentiles.

Locust's own table keeps what it means: requests, their rate, failures. Its percentiles are rounded
(147 ms becomes 150) and know nothing of tokens; ours come from the records.
"""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any, Final

from flask import Blueprint, Response, request

from harness.measure.stats import QUANTILES

if TYPE_CHECKING:
    from locust.env import Environment
    from locust.web import WebUI

    from harness.drive.sinks import LatencyTable

KEY: Final = "latencies"
COLUMNS: Final = {
    "metric": "Latency, ms",
    "n": "Observations",
    **{name: name.upper() for name in QUANTILES},
    "max": "Max",
}
CSV_PATH: Final = "/latencies/requests.csv"


def install(environment: Environment, table: LatencyTable) -> None:
    """Show `table` in the environment's web UI: a tab, `extended_stats` and a CSV download."""
    web_ui = environment.web_ui
    if web_ui is None or web_ui.app is None:
        return
    structure = [{"key": key, "title": title} for key, title in COLUMNS.items()]
    web_ui.template_args |= {
        "extended_tabs": [{"title": "Token latencies", "key": KEY}],
        "extended_tables": [{"key": KEY, "structure": structure}],
        "extended_csv_files": [{"href": f".{CSV_PATH}", "title": "Download token latencies CSV"}],
    }
    environment.events.reset_stats.add_listener(table.clear)
    _routes(web_ui, table)


def _routes(web_ui: WebUI, table: LatencyTable) -> None:
    blueprint = Blueprint("harness", __name__)

    @blueprint.route(CSV_PATH)
    @web_ui.auth_required_if_enabled
    def latencies_csv() -> Response:
        return Response(as_csv(table.rows()), mimetype="text/csv")

    def extend(response: Response) -> Response:
        """Add our rows to what the page polls every two seconds."""
        if request.path.endswith("/stats/requests") and response.is_json:
            report: dict[str, Any] = response.get_json()
            report["extended_stats"] = [{"key": KEY, "data": table.rows()}]
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
