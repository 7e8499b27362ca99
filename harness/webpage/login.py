"""A login for Locust's web UI and everything of ours that it serves.

Locust 2.47 brings a page that asks (`--web-login`) and asks whoever set it up who may come in; this
is that part, for one user. The password comes from the environment or a file, never an argument:

    HARNESS_WEB_USER           default: admin
    HARNESS_WEB_PASSWORD       or
    HARNESS_WEB_PASSWORD_FILE  a file that holds it, as Docker mounts a secret

With a password the login is on, with or without `--web-login`; without one nothing changes. A
browser keeps a signed cookie that ends with this process; programs (Prometheus, curl) may send the
same user and password as HTTP Basic. A wrong password costs a second.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import gevent
from flask import Flask, Response, redirect, request, session, url_for
from flask_login import LoginManager, UserMixin, login_user

from harness.errors import ConfigError

if TYPE_CHECKING:
    from locust.web import WebUI
    from werkzeug.wrappers import Request
    from werkzeug.wrappers import Response as Redirect

USER: Final = "HARNESS_WEB_USER"
PASSWORD: Final = "HARNESS_WEB_PASSWORD"  # noqa: S105 - the variable's name
PASSWORD_FILE: Final = "HARNESS_WEB_PASSWORD_FILE"  # noqa: S105 - as PASSWORD
DEFAULT_USER: Final = "admin"
WRONG_S: Final = 1.0
WRONG: Final = "This user and password do not belong together."


def credentials() -> tuple[str, str] | None:
    """(user, password) of the environment; None without a password. Raises ConfigError."""
    password, file = os.environ.get(PASSWORD, ""), os.environ.get(PASSWORD_FILE, "")
    if file and not password:
        try:
            password = Path(file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{PASSWORD_FILE} is {file!r}, which cannot be read ({type(error).__name__}): "
                f"expected a file that holds the web UI's password; try {PASSWORD} instead."
            ) from None
        if not password:
            raise ConfigError(
                f"{PASSWORD_FILE} is {file!r}, which is empty: expected a file that holds the web "
                "UI's password; write one into it."
            )
    return (os.environ.get(USER) or DEFAULT_USER, password) if password else None


def protect(web_ui: WebUI, app: Flask) -> None:
    """Ask for a login on every page, if there is a password. Raises ConfigError."""
    known = credentials()
    if known is None:
        if web_ui.web_login:
            raise ConfigError(
                f"--web-login was given and no password: expected one in the environment; try "
                f"{PASSWORD_FILE}=FILE or {PASSWORD}."
            )
        return
    if not web_ui.web_login:  # what WebUI does itself with the option
        web_ui.web_login = True
        web_ui.login_manager = LoginManager(app)
        web_ui.login_manager.login_view = "locust.login"
    _install(web_ui, app, *known)


def _install(web_ui: WebUI, app: Flask, user: str, password: str) -> None:
    app.config.update(
        SECRET_KEY=os.urandom(32),
        SESSION_COOKIE_NAME="harness_session",  # cookies know no port: not another program's
        SESSION_COOKIE_SAMESITE="Strict",  # another site's form must not press Start
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SECURE=bool(web_ui.tls_cert),
    )
    prefix = app.blueprints["locust"].url_prefix or ""
    path = f"{prefix}/harness/login"
    web_ui.auth_args = {"username_password_callback": path}
    person = UserMixin()
    person.id = user  # what the cookie holds

    def may(name: str, word: str) -> bool:
        right = hmac.compare_digest(name.encode(), user.encode())
        return hmac.compare_digest(word.encode(), password.encode()) and right

    @web_ui.login_manager.user_loader
    def by_cookie(name: str) -> UserMixin | None:
        return person if name == user else None

    @web_ui.login_manager.request_loader
    def by_header(asked: Request) -> UserMixin | None:
        given = asked.authorization
        if given is None or given.type != "basic":
            return None
        if may(given.username or "", given.password or ""):
            return person
        gevent.sleep(WRONG_S)
        return None

    @app.before_request
    def note_the_way() -> None:
        """The login is asked for in place of a page; Locust's form does not hand that on."""
        page, asked = f"{prefix}/harness", request.args.get("next", "")
        ours = asked == page or asked.startswith(f"{page}/files/")  # nothing that a page polls
        if request.endpoint == "locust.login" and ours:
            session["next"] = asked

    @app.post(path)
    def log_in() -> Redirect:
        if may(request.form.get("username", ""), request.form.get("password", "")):
            login_user(person)
            return redirect(session.pop("next", None) or url_for("locust.index"))
        gevent.sleep(WRONG_S)
        session["auth_error"] = WRONG
        return redirect(url_for("locust.login"))


# Other sites' pages get nothing from the web UI: they cannot press a button or read a figure. A
# browser sends any page's POST to any server, this one too, and says in `Origin` where it comes
# from. Programs (curl, Prometheus) send no `Origin` and are let through: a login decides what they
# may do.
#
# `Origin` alone does not stop DNS rebinding: a site whose own name suddenly resolves to this
# address sends its own name as both `Origin` and `Host`. An address cannot be rebound and
# `localhost` is not looked up, so without a login only these and the name given as --web-host are
# answered. With a login the cookie belongs to the name it was set for, which no other site shares.


def keep_out(web_ui: WebUI, app: Flask) -> None:
    """Guard every rule of the web UI, Locust's too."""

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
