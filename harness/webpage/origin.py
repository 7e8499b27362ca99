"""Other sites' pages get nothing from the web UI: they cannot press a button or read a figure.

A browser sends any page's POST to any server, this one too, and says in `Origin` where it comes
from. Programs (curl, Prometheus) send no `Origin` and are let through: a login decides what they
may do.

`Origin` alone does not stop DNS rebinding: a site whose own name suddenly resolves to this address
sends its own name as both `Origin` and `Host`. An address cannot be rebound and `localhost` is not
looked up, so without a login only these and the name given as --web-host are answered. With a
login the cookie belongs to the name it was set for, which no other site shares.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flask import Response, request

if TYPE_CHECKING:
    from locust.web import WebUI


def keep_out(web_ui: WebUI) -> None:
    """Guard every rule of the web UI, Locust's too."""
    app = web_ui.app
    assert app is not None  # noqa: S101 - who calls has looked

    def refuse() -> Response | None:
        host = request.host
        if not web_ui.web_login and not _cannot_be_rebound(host, web_ui.host):
            text = (
                f"this page was asked for as {host}: without a login expected an IP address, "
                "localhost or the name that --web-host gives; try http://127.0.0.1, or set "
                "HARNESS_WEB_PASSWORD.\n"
            )
            return Response(text, status=403, content_type="text/plain; charset=utf-8")
        origin = request.headers.get("Origin")
        foreign = origin is not None and urlsplit(origin).netloc != host
        return Response(status=403) if foreign and request.method == "POST" else None

    app.before_request(refuse)
    # Locust lets every site read (CORS). What was added last runs first, and Locust was before us.
    app.after_request_funcs.setdefault(None, []).insert(0, _unshared)


def _cannot_be_rebound(host: str, web_host: str) -> bool:
    """Whether the Host header names an address, this machine, or what we were told to listen at."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:  # brackets without an IPv6 address
        return False
    if name == "localhost" or name.endswith(".localhost") or name == web_host.lower():
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _unshared(response: Response) -> Response:
    response.headers.pop("Access-Control-Allow-Origin", None)
    return response
