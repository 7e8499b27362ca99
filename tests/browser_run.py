"""Chromium without a window, and the `locust` command with our page, for tests in a browser."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from harness.server.address import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, BrowserContext, Page

TOP = Path(__file__).parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu"]
PATIENCE_S = 60
# every element with words of its own: its contrast with what lies behind it, as WCAG 2 counts it
CONTRAST = """() => {
  const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const c = parse(getComputedStyle(at).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const low = [];
  let seen = 0;
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    const drawn = node instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(parse(drawn)), light(behind(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    seen += 1;
    if (ratio < 4.5) low.push(`${ratio.toFixed(2)} ${node.tagName} ${node.textContent.trim()}`);
  }
  return [seen, low];
}"""


def missing() -> str:
    """Why no page can be opened here; "" where one can."""
    return "" if CHROMIUM else "no Chromium (Debian: apt-get install chromium fonts-dejavu-core)"


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Chromium."""
    from playwright import sync_api  # noqa: PLC0415 - slow, and most tests need no browser

    with sync_api.sync_playwright() as made:
        opened = made.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@contextlib.contextmanager
def locust(
    *arguments: object,
    file: str = "knee",
    env: dict[str, str] | None = None,
    codes: tuple[int, ...] = (0, 1),
) -> Iterator[str]:
    """Locust with its web UI, its URL; ended in order with one of `codes`.

    1 is Locust's where requests failed.
    """
    web, bind = free_ports(2, set())
    path = file if file.endswith(".py") else f"locustfiles/{file}.py"
    command = [
        sys.executable,
        "-m",
        "locust",
        "-f",
        path,
        "--web-host",
        "127.0.0.1",
        "--web-port",
        str(web),
        "--master-bind-port",
        str(bind),
        "--master-port",
        str(bind),
        *map(str, arguments),
    ]
    with subprocess.Popen(
        command,
        cwd=TOP,
        env=os.environ | (env or {}),
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            wait_until_served(process, web)
            yield f"http://127.0.0.1:{web}"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                out, _ = process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode in codes, out
        assert "Traceback" not in out, out


def wait_until_served(process: subprocess.Popen[str], port: int) -> None:
    """Somebody listens there."""
    until = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError(process.stdout.read() if process.stdout else "")


def until(page: Page, truth: str, argument: Any = None) -> None:
    """Wait for it in the page; Playwright's own wait evaluates text there: our CSP forbids it."""
    end = time.monotonic() + 3 * PATIENCE_S
    while not page.evaluate(truth, argument):
        assert time.monotonic() < end, f"{truth} did not come: {page.locator('main').inner_text()}"
        page.wait_for_timeout(100)


class Visit:
    """A browser context that notes what its pages ask for and what goes wrong in them."""

    def __init__(self, opened: Browser, url: str, **options: Any) -> None:
        """`options` as Playwright's `new_context` takes them."""
        self.url = url
        self.context: BrowserContext = opened.new_context(**options)
        self.asked: list[str] = []
        self.errors: list[str] = []
        self.context.on("request", lambda request: self.asked.append(request.url))
        self.context.on(
            "console",
            lambda said: self.errors.append(said.text) if said.type == "error" else None,
        )
        self.context.on("weberror", lambda error: self.errors.append(str(error.error)))

    def open(self, path: str) -> Page:
        """A page."""
        page = self.context.new_page()
        page.set_default_timeout(PATIENCE_S * 1_000)
        page.goto(self.url + path)
        return page

    def elsewhere(self) -> list[str]:
        """Requests that left this server (`data:` and `blob:` do not)."""
        host = urlsplit(self.url).netloc
        return [u for u in self.asked if u.startswith("http") and urlsplit(u).netloc != host]


def get(url: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    """(status, body) without following to a login page."""

    class Stay(urllib.request.HTTPRedirectHandler):
        """Follows nothing."""

        def redirect_request(self, *_: Any) -> None:
            """None: the redirect is the answer."""

    asked = urllib.request.Request(url, headers=headers or {})  # noqa: S310 - loopback
    try:
        with urllib.request.build_opener(Stay()).open(asked, timeout=20) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
