"""Other sites' pages get nothing from the web UI: neither a button pressed nor a figure read.

A browser sends any page's POST to any server, this one too, and says where it comes from. Programs
(curl, Prometheus) say nothing and are let through: what they may do, a login decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flask import Response, request

if TYPE_CHECKING:
    from flask import Flask


def keep_out(app: Flask) -> None:
    """Guard every rule of the app, Locust's too."""
    app.before_request(_refuse)
    # Locust lets every site read (CORS). What was added last runs first, and Locust was before us.
    app.after_request_funcs.setdefault(None, []).insert(0, _unshared)


def _refuse() -> Response | None:
    """What changes something must come from our own pages."""
    origin = request.headers.get("Origin")
    foreign = origin is not None and urlsplit(origin).netloc != request.host
    return Response(status=403) if foreign and request.method == "POST" else None


def _unshared(response: Response) -> Response:
    response.headers.pop("Access-Control-Allow-Origin", None)
    return response
