"""Secrets are planted where they are accepted, and searched for in all that a run leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from http.client import HTTPException
from typing import TYPE_CHECKING, Final

import pytest
from fault_server import ANSWERS, SSE, after, chunk, fault_servers, whole
from study_process import check_code, descendants, harness

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.engine.server import ServingOptions
from harness.errors import ConfigError
from harness.records.redact import HIDDEN, redact_text
from harness.server.address import Address, free_ports

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process
KEY: Final = "q7Planted-key_0123456789"
IN_HEADER: Final = "planted.in.a.header-42"
SECRETS: Final = (KEY, IN_HEADER)
LENGTHS: Final = ("--prompt-tokens", "16", "--output-tokens", "8", "--quiet")
HEADERS: Final = ("--header", "X-Token: $PLANTED", "--header", "X-Route: a;$PLANTED;b")
SAYS: Final = f"no such key {KEY}, nor {IN_HEADER}"
# the message is shortened to 200 characters: most of the key is not in it
CUT: Final = "x" * 190 + KEY
ECHOES: Final = {
    "a status": whole({"error": {"message": SAYS}}, 401),
    "an event": b"HTTP/1.1 200 OK\r\n"
    + SSE
    + b"\r\n"
    + chunk(json.dumps({"error": {"message": SAYS}}).encode())
    + b"0\r\n\r\n",
    "a cut message": whole({"error": {"message": CUT}}, 500),
    "a kind": whole(b"{}", kind=f"text/{KEY}".lower()),
}


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment, as a user has it."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    monkeypatch.setenv("PLANTED", IN_HEADER)


def found_in(what: dict[str, bytes]) -> list[str]:
    """Where a secret is, or the first half of one."""
    parts = {secret[: len(secret) // 2].lower().encode() for secret in SECRETS}
    return [name for name, data in what.items() for part in parts if part in data.lower()]


def files(folder: Path) -> dict[str, bytes]:
    """All below it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def pages(*urls: str) -> dict[str, bytes]:
    """What they serve, if they do by now."""
    found = {}
    for url in urls:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own
                found[url] = answer.read()
        except (OSError, HTTPException):  # not up yet, or ended in the middle of a page
            continue
    return found


@pytest.mark.long
def test_nothing_that_a_run_leaves_holds_a_secret(tmp_path: Path) -> None:
    """Files, what was printed, the pages that it served, and every process's arguments."""
    port, ui = free_ports(2, set())
    paths = "", "harness/live.json", "stats/requests", "exceptions"
    urls = [f"http://127.0.0.1:{port}/metrics", *(f"http://127.0.0.1:{ui}/{one}" for one in paths)]
    serving = ServingOptions(api_key=KEY)
    with start_engine(EngineConfig(), serving=serving) as engine:
        command = [
            sys.executable,
            "-m",
            "harness",
            "run",
            engine.url,
            "--users",
            "4",
            "--duration",
            "4s",
            "--processes",
            "2",
            *LENGTHS,
            *HEADERS,
            "--slo",
            "ttft_p95=5s",
            "--compat",
            "vllm-bench",
            "--out",
            str(tmp_path / "run"),
            "--json",
            str(tmp_path / "result.json"),
            "--junit",
            str(tmp_path / "junit.xml"),
            "--metrics-port",
            str(port),
            "--ui",
            "--ui-port",
            str(ui),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            served: dict[str, bytes] = {}
            arguments = descendants(os.getpid())
            while process.poll() is None:  # to its end: a page may be loaded at any time
                time.sleep(0.2)
                served |= pages(*urls)
                arguments |= descendants(os.getpid())
            out, err = process.communicate()
    again = harness("report", str(tmp_path / "run"))
    assert process.returncode == again.returncode, err
    check_code(process.returncode, (out + err).decode(), 0, 6)  # 6: too few requests to decide
    assert served.keys() == {*urls}
    left = files(tmp_path)
    assert left.keys() >= {"run/run.json", "run/report.html", "result.json", "junit.xml"}
    report = (again.stdout + again.stderr).encode()
    said = {"stdout": out, "stderr": err, "report": report}
    said |= {f"arguments of {pid}": line.encode() for pid, line in arguments.items()}
    assert sum("harness" in line for line in arguments.values()) > 4
    assert found_in({**left, **served, **said}) == []


@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize("good", [0, 12], ids=["at the probe", "under load"])
def test_a_server_that_repeats_them(
    echo: str, good: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a status, an event, a message that is cut off, a header: errors quote servers."""
    monkeypatch.setitem(ANSWERS, "echo", ECHOES[echo])
    with fault_servers() as servers:
        server = servers("echo", after(good))
        out = tmp_path / "run"
        load = "--users", "2", "--duration", "1s", "--junit", str(tmp_path / "junit.xml")
        done = harness("run", server.url, *load, *LENGTHS, *HEADERS, "--out", str(out))
    assert done.returncode == (99 if good else 3), done.stderr
    assert out.exists() == bool(good)
    said = {"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}
    assert found_in({**files(tmp_path), **said}) == []


@pytest.mark.parametrize(
    "url",
    [
        f"http://ann:{KEY}@host:8000",
        f"http://host:8000?key={KEY}",
        f"http://ann:{KEY}@bad host",
        f"http://ann:{KEY}@host:99999",
        f"http://{KEY}@host/v1/models",
        f"ftp://ann:{KEY}@host",
    ],
)
def test_a_url_with_a_secret_is_refused_without_it(url: str) -> None:
    """Users, passwords and queries are not accepted, and not repeated."""
    with pytest.raises(ConfigError) as caught:
        Address.parse(url)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("kept", [len(KEY), len(KEY) - 1, 8])
def test_the_beginning_of_a_secret_at_the_end(kept: int) -> None:
    """A shortened sentence may end in one."""
    assert redact_text("no such key " + KEY[:kept], SECRETS) == f"no such key {HIDDEN}"
