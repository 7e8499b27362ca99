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
    password = os.environ.get(PASSWORD, "")
    file = os.environ.get(PASSWORD_FILE, "")
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
    if not password:
        return None
    return os.environ.get(USER) or DEFAULT_USER, password


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
    login = _Login(user, password, page=f"{prefix}/harness")
    web_ui.login_manager.user_loader(login.by_cookie)
    web_ui.login_manager.request_loader(login.by_header)
    app.before_request(login.note_the_way)
    app.add_url_rule(path, view_func=login.log_in, methods=["POST"])


class _Login:
    """Who may come in: one user, by cookie, by header or by the form."""

    def __init__(self, user: str, password: str, page: str) -> None:
        """`page`: the path of our own page, which nobody sees without a login."""
        self._user = user
        self._password = password
        self._page = page
        self._person = UserMixin()
        self._person.id = user  # what the cookie holds

    def _is_right(self, user: str, password: str) -> bool:
        # Both are compared, and in constant time: how long it takes does not say which was wrong.
        is_user = hmac.compare_digest(user.encode(), self._user.encode())
        is_password = hmac.compare_digest(password.encode(), self._password.encode())
        return is_password and is_user

    def by_cookie(self, user: str) -> UserMixin | None:
        return self._person if user == self._user else None

    def by_header(self, http_request: Request) -> UserMixin | None:
        """HTTP Basic, which programs send."""
        given = http_request.authorization
        if given is None or given.type != "basic":
            return None
        if self._is_right(given.username or "", given.password or ""):
            return self._person
        gevent.sleep(WRONG_S)
        return None

    def note_the_way(self) -> None:
        """The login is asked for in place of a page; Locust's form does not hand that on."""
        way = request.args.get("next", "")
        # Nothing that a page polls: only what a person opens.
        is_ours = way == self._page or way.startswith(f"{self._page}/files/")
        if request.endpoint == "locust.login" and is_ours:
            session["next"] = way

    def log_in(self) -> Redirect:
        """Locust's form was sent."""
        if self._is_right(request.form.get("username", ""), request.form.get("password", "")):
            login_user(self._person)
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
        is_foreign = origin is not None and urlsplit(origin).netloc != host
        if is_foreign and request.method == "POST":
            return Response(status=403)
        return None

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
