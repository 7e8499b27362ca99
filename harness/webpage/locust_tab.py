"""A table of its own in Locust's web UI: TTFT, ITL, TPOT and e2e with true percentiles.

Locust's own table keeps what it means: requests, their rate, failures. Its percentiles are rounded
(147 ms becomes 150) and know nothing of tokens; ours come from the records.
"""

from __future__ import annotations

import csv
import io
import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from flask import Blueprint, Flask, Response, request
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from harness.metrics.metrics import LATENCIES
from harness.metrics.statistics import MIN_TAIL, QUANTILES, quantile
from harness.units import MS
from harness.webpage.login import keep_out

if TYPE_CHECKING:
    from locust.web import WebUI

    from harness.core.arrays import Floats, Ints
    from harness.metrics.run_counts import RunCounts
    from harness.metrics.slo import Slo

    Tabs = dict[str, tuple[str, Mapping[str, str], Callable[[], Sequence[Mapping[str, str | int]]]]]

# a live view judges nothing: a verdict comes at the end, from all records
WITHIN, OVER, TOO_FEW = "within so far", "over so far", "too few requests"
# Percentiles are of all values so far, until a latency has RECENT of them; then of the newest
# RECENT, and its row says so. At 25,000 tokens/s the ITL row covers the last ten seconds.
RECENT: Final = 1 << 18  # values of each latency that the live table shows: 2 MiB, 3 ms to sort


class LatencyTable:
    """Live percentiles: exact over all requests so far, or over the most recent values.

    Failures count as +infinity, as everywhere. Values are in ms.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything (Locust's "Reset Stats")."""
        self._ms = {key: array("d") for key in LATENCIES}

    def take(self, key: str, ns: Floats | Ints) -> None:
        """New values of one latency in ns, as RunCounts tells them."""
        if key in self._ms:
            self._ms[key].frombytes((ns / MS).tobytes())
            if len(self._ms[key]) > 2 * RECENT:  # seldom: what stays is copied
                del self._ms[key][: -RECENT - 1]  # one more than is shown, so that it is known

    def rows(self) -> list[dict[str, str | int]]:
        """One row per latency: name, n, and its quantiles in ms as text ("-": none yet, "inf")."""
        return [self._row(key, values) for key, values in self._ms.items()]

    def _row(self, key: str, values: array[float]) -> dict[str, str | int]:
        ordered = np.sort(np.frombuffer(values)[-RECENT:])
        n = len(ordered)
        title = LATENCIES[key].title + (f" (newest {n:,})" if len(values) > n else "")
        cells: dict[str, str | int] = {"metric": title, "key": key, "n": n}
        for name, q in QUANTILES.items():
            cells[name] = f"{quantile(ordered, q):.2f}" if n else "-"
        cells["max"] = f"{ordered[-1]:.2f}" if n else "-"
        return cells


class SloTable:
    """Of each SLO, the exact share of observations over its limit so far; failures are over."""

    def __init__(self, counts: Callable[[], RunCounts]) -> None:
        """`counts`: those of the run that is shown."""
        self._counts = counts
        self.clear()

    def clear(self) -> None:
        counts = self._counts()
        self._before = list(zip(counts.observed, counts.missed, strict=True))

    def rows(self) -> list[dict[str, str]]:
        counts = self._counts()
        now = zip(counts.slos, counts.observed, counts.missed, self._before, strict=True)
        return [self._row(slo, n - n0, over - over0) for slo, n, over, (n0, over0) in now]

    def _row(self, slo: Slo, n: int, over: int) -> dict[str, str]:
        share = over / n if n else 0.0
        so_far = OVER if share > slo.allowed else WITHIN
        if n * slo.allowed < MIN_TAIL:
            so_far = TOO_FEW
        return {
            "slo": str(slo),
            "so_far": so_far,
            "over": f"{share:.2%}",
            "allowed": f"{slo.allowed:.2%}",
            "n": str(n),
        }


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


def install(
    web_ui: WebUI, app: Flask, table: LatencyTable, slos: SloTable, metrics: Callable[[], bytes]
) -> None:
    """Tabs, `extended_stats`, a CSV, `metrics`; other sites' pages are kept out of all of it."""
    keep_out(web_ui, app)
    tabs: Tabs = {"latencies": ("Token latencies", COLUMNS, table.rows)}
    if slos.rows():
        tabs["slos"] = ("SLOs", SLO_COLUMNS, slos.rows)
    web_ui.template_args |= {
        "extended_tabs": [{"title": title, "key": key} for key, (title, _, _) in tabs.items()],
        "extended_tables": [
            {"key": key, "structure": [{"key": k, "title": head} for k, head in columns.items()]}
            for key, (_, columns, _) in tabs.items()
        ],
        "extended_csv_files": [{"href": f".{CSV_PATH}", "title": "Download token latencies CSV"}],
    }
    web_ui.environment.events.reset_stats.add_listener(table.clear)
    web_ui.environment.events.reset_stats.add_listener(slos.clear)
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
            report["extended_stats"] = [
                {"key": key, "data": rows()} for key, (_, _, rows) in tabs.items()
            ]
            response.set_data(json.dumps(report))
        return response

    app.register_blueprint(blueprint)
    app.after_request(extend)


def as_csv(rows: list[dict[str, str | int]]) -> str:
    """The table with its keys as header, one line per latency, in ms."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ["key", *COLUMNS], extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
