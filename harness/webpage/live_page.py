"""Our own page in Locust's web server: what a load test of a language model is about, live.

    /harness               the page; its scripts and styles beside it, nothing from elsewhere
    /harness/live.json     what is new since a cursor, asked for once a second while a page is open
    /harness/latencies.csv the quantiles of the whole run, as the page's table has them
    /harness/metrics       the run's metrics for Prometheus
    /harness/files/NAME    of the run's folder, the files of DOWNLOADS and no other
    /harness/start, /stop  POST from the page itself; login.py refuses another site's

While nobody looks, nothing is done here. Locust's own page gets a link that leads here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gevent
import orjson
from flask import Blueprint, Flask, Response, request, send_file
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from harness.charts.embed import policy
from harness.records import names

if TYPE_CHECKING:
    from locust.web import WebUI

    from harness.export.live_state import LiveState
    from harness.export.live_tables import LiveTables

PAGE: Final = files("harness.webpage") / "page"
CHARTS: Final = files("harness.charts") / "page"
# name -> the folder that it is in
PARTS: Final = dict.fromkeys(("live.css", "live.js", "elements.js", "form.js", "link.js"), PAGE)
PARTS.update(dict.fromkeys(("charts.css", "charts.js", "echarts.common.min.js"), CHARTS))
# name -> what it is for; each only while it lies in the folder of the run that the page shows
DOWNLOADS: Final = {
    names.REPORT_HTML: "the report",
    names.REPORT_MD: "the report, for a pull request",
    names.RESULT: "the result and every level",
    names.LEVELS_CSV: "the levels, for a spreadsheet",
    names.LEVELS_PARQUET: "the levels with all figures, for a notebook",
    names.PARQUET: "every request, for a notebook",
    names.RUN: "configuration, versions, hardware",
}
OWN: Final = "default-src 'self'; base-uri 'none'; frame-ancestors 'self'; form-action 'self'"
LINGER_S: Final = 5.0
POLL_S: Final = 0.1


@dataclass(slots=True)
class LivePage:
    """One run's page, or one process's with run after run."""

    state: LiveState
    folder: Callable[[], Path | None]  # of the run that is shown
    tables: LiveTables
    metrics: Callable[[], bytes]  # a page of them
    start: Callable[[Mapping[str, str]], dict[str, str]] | None = None  # None: not from here
    stop: Callable[[], None] | None = None
    close: Callable[[], None] = lambda: None  # ends the web server
    asked_s: float = float("-inf")  # when a page last looked, time.monotonic()

    def install(self, web_ui: WebUI, app: Flask) -> None:
        """Serve it beside Locust's."""
        prefix = app.blueprints["locust"].url_prefix or ""
        blueprint = Blueprint("harness_live", __name__, url_prefix=f"{prefix}/harness")
        parts = ",".join(f'"{name}"' for name in PARTS)
        views: dict[str, Callable[..., Response]] = {
            "": self._page,
            f"/<any({parts}):name>": _part,
            "/live.json": self._news,
            "/latencies.csv": self._csv,
            "/metrics": self._metrics,
            "/files/<name>": self._file,
        }
        actions: dict[str, Callable[..., Response]] = {"/start": self._start, "/stop": self._stop}
        for method, by_rule in (("GET", views), ("POST", actions)):
            for rule, view in by_rule.items():
                guarded = web_ui.auth_required_if_enabled(view)
                blueprint.add_url_rule(rule, view.__name__, guarded, methods=[method])
        app.register_blueprint(blueprint)
        app.after_request(_with_link)
        web_ui.environment.events.reset_stats.add_listener(self.tables.clear)

    @property
    def open(self) -> bool:
        return time.monotonic() - self.asked_s < LINGER_S

    def linger(self) -> None:
        """Wait until an open page has seen what is told now, LINGER_S at most."""
        now_s = time.monotonic()
        while self.asked_s <= now_s and time.monotonic() - now_s < LINGER_S:
            gevent.sleep(POLL_S)
        gevent.sleep(POLL_S)  # for the answer to leave

    def _page(self) -> Response:
        return _own((PAGE / "live.html").read_bytes(), "text/html; charset=utf-8")

    def _news(self) -> Response:
        self.asked_s = time.monotonic()
        news = self.state.changes_since(request.args.get("since", ""))
        news["tables"] = self.tables.rows()
        if "facts" in news:
            news["facts"] = news["facts"] | {
                "files": self._files(),
                "can_start": self.start is not None,
                "can_stop": self.stop is not None,
            }
        return _own(orjson.dumps(news), "application/json")

    def _csv(self) -> Response:
        answer = _own(self.tables.csv().encode(), "text/csv; charset=utf-8")
        answer.headers["Content-Disposition"] = "attachment; filename=latencies.csv"
        return answer

    def _metrics(self) -> Response:
        return Response(self.metrics(), content_type=CONTENT_TYPE_PLAIN_0_0_4)

    def _files(self) -> list[dict[str, str]]:
        folder = self.folder()
        if folder is None:
            return []
        return [
            {"name": name, "what": what}
            for name, what in DOWNLOADS.items()
            if (folder / name).is_file()
        ]

    def _file(self, name: str) -> Response:
        folder = self.folder()
        if name not in DOWNLOADS or folder is None or not (folder / name).is_file():
            return Response(status=404)  # Locust's login makes a 200 of an abort()
        answer: Response = send_file(
            (folder / name).absolute(), as_attachment=name != names.REPORT_HTML, max_age=0
        )
        answer.headers["Content-Security-Policy"] = shown()
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer

    def _start(self) -> Response:
        form: Any = request.get_json(silent=True)
        is_form = isinstance(form, dict) and all(isinstance(v, str) for v in form.values())
        if self.start is None or not is_form:
            return Response(status=400)
        wrong = self.start(form)
        return _own(orjson.dumps({"wrong": wrong}), "application/json")

    def _stop(self) -> Response:
        if self.stop is None:
            return Response(status=400)
        self.stop()
        return _own(b"{}", "application/json")


def shown() -> str:
    """A report holds words of the server under test: it may show, and run its charts' script alone.

    In an origin of its own, so that not even this script could ask for anything here.
    """
    return f"sandbox allow-scripts; {policy()}"


def _part(name: str) -> Response:
    kind = "text/css" if name.endswith(".css") else "text/javascript"
    return _own((PARTS[name] / name).read_bytes(), kind)


def _own(body: bytes, kind: str) -> Response:
    """An answer that no other site may frame or script, and that is asked for anew each time."""
    answer = Response(body, content_type=kind)
    answer.headers["Content-Security-Policy"] = OWN
    answer.headers["X-Content-Type-Options"] = "nosniff"
    answer.headers["Cache-Control"] = "no-store"
    return answer


def _with_link(response: Response) -> Response:
    """Locust's page, with the script that links here."""
    if request.endpoint == "locust.index" and response.mimetype == "text/html":
        link = b'<script src="./harness/link.js" defer></script></body>'
        response.set_data(response.get_data().replace(b"</body>", link, 1))
    return response
