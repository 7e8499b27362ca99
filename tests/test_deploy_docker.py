"""Every container of deploy/ with its exact arguments, in real containers, with four workers.

A Service is a network alias here, a volume a volume, an emptyDir a tmpfs; rights are as the
manifest has them. What a test adds is at the end of the arguments, where it counts: a shorter run.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from compose import wait_for
from manifests import (
    DEPLOY,
    Command,
    by_hamoudas_operator,
    by_locusts_operator,
    only,
    pod_of,
)
from test_image import IMAGE, docker, image  # noqa: F401 - `image` is a fixture

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.docker
SUBNET: Final = "10.213.77.0/24"
CUT_ADDRESS: Final = "10.213.77.200"
CUT_S: Final = 3.0  # less than the 20 s after which a worker gives up its master
PASSWORD: Final = "pods-of-a-test"  # noqa: S105 - of a page that nobody reaches
STORE: Final = """
import http.server
class Store(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        with open('/tmp/put', 'wb') as file:
            file.write(self.rfile.read(int(self.headers['Content-Length'])))
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(('', 9000), Store).serve_forever()
"""
RIGHTS: Final = (
    *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    *("--user", "10001:10001", "--tmpfs", "/tmp"),  # noqa: S108 - the image's
)


class Pods:
    """Containers on a network of their own."""

    def __init__(self) -> None:
        self.network = f"pods-{os.getpid()}"
        self.names: list[str] = []

    def run(self, args: list[str], *options: str, host: str = "") -> str:
        """Start one; its name."""
        name = f"{self.network}-{len(self.names)}"
        self.names.append(name)
        alias = ("--network-alias", host) if host else ()
        words = ("--name", name, "--network", self.network, *alias, *options, IMAGE, *args)
        done = docker("run", "--detach", *words)
        assert done.returncode == 0, done.stderr
        return name

    def code(self, name: str) -> int:
        """Its exit code, once it has ended."""
        return int(docker("wait", name).stdout)

    def end(self) -> None:
        docker("rm", "--force", "--volumes", *self.names)
        docker("network", "rm", self.network)


@pytest.fixture
def pods(image) -> Iterator[Pods]:  # noqa: F811 - the fixture
    """With a simulated vLLM behind the Service `vllm`."""
    assert image
    made = Pods()
    docker("network", "create", "--subnet", SUBNET, made.network)
    try:
        made.run(["engine", "--host", "0.0.0.0", "--port", "8000"], host="vllm")
        yield made
    finally:
        made.end()


def options_of(env: list[dict[str, Any]], **files: tuple[Path, str]) -> list[str]:
    """`docker run`'s options for plain environment variables and mounted files."""
    plain = [f"{each['name']}={each['value']}" for each in env if "value" in each]
    options = [word for text in plain for word in ("--env", text)]
    for path, to in files.values():
        options += ["--volume", f"{path}:{to}:ro"]
    return options


def said(name: str) -> str:
    done = docker("logs", name)
    return done.stdout + done.stderr


def shorter(commands: tuple[Command, Command], *more: str) -> tuple[Command, Command]:
    """With more arguments for the master, which replace its own."""
    master, workers = commands
    return master._replace(args=[*master.args, *more]), workers


def test_locusts_operator(pods: Pods, tmp_path: Path) -> None:
    """A worker's network is cut and healed: nothing is lost, and the folder is uploaded."""
    test = only(DEPLOY / "operator-locust", "LocustTest")
    (tmp_path / "locustfile.py").write_text(test["spec"]["locustfile"]["content"])
    tmp_path.chmod(0o755)
    store = pods.run(["python", "-c", STORE], host="results")
    options = options_of(test["spec"]["env"], file=(tmp_path, "/home/locust"))
    short = ("--run-time", "10s", "--users", "8", "--spawn-rate", "8", "--output-tokens", "16")
    master, workers = shorter(by_locusts_operator(test), *short)
    name = pods.run(master.args, *options, host=master.host)
    # a pod keeps its address
    cut = pods.run(workers.args, *options, "--ip", CUT_ADDRESS)
    for _ in range(workers.pods - 1):
        pods.run(workers.args, *options)
    journal = ("exec", cut, "find", "reports", "-name", "sends*", "-size", "+0")
    wait_for(lambda: docker(*journal).stdout)
    docker("network", "disconnect", pods.network, cut)
    time.sleep(CUT_S)
    docker("network", "connect", "--ip", CUT_ADDRESS, pods.network, cut)
    code = pods.code(name)
    words = said(name)
    assert "Uploaded to http://results:9000/chat.tar" in words, words
    put = tmp_path / "put"
    docker("cp", f"{store}:/tmp/put", put)
    with tarfile.open(fileobj=io.BytesIO(put.read_bytes())) as tar:
        [member] = [member for member in tar.getnames() if member.endswith("/result.json")]
        result = json.load(tar.extractfile(member))
    assert code == result["exit_code"], words
    assert (result["damage"], result["client"]["missing"]) == ([], ""), words
    assert result["client"]["processes"] == 4


def test_hamoudas_operator(pods: Pods) -> None:
    """With the pods' rights; the master's exit code is that of the result in its volume."""
    test = only(DEPLOY / "operator-hamouda", "LocustTest")
    reports = f"{pods.network}-reports"
    options = [*RIGHTS, *options_of(test["spec"]["env"]["variables"])]
    short = ("--run-time", "3s", "--users", "8", "--spawn-rate", "8", "--output-tokens", "16")
    master, workers = shorter(by_hamoudas_operator(test), *short)
    mounted = ("--volume", f"{reports}:/srv/harness/reports")
    name = pods.run(master.args, *options, *mounted, host=master.host)
    for _ in range(workers.pods):
        pods.run(workers.args, *options)
    code = pods.code(name)
    read = "import pathlib; print(next(pathlib.Path('reports').glob('*/result.json')).read_text())"
    done = docker("run", "--rm", *mounted, IMAGE, "python", "-c", read)
    docker("volume", "rm", "--force", reports)
    result = json.loads(done.stdout)
    assert result["client"]["processes"] == 4
    # Locust's own rule where nothing was to be judged; here there is an SLO
    assert code == result["exit_code"], said(name)


def page_of(pods: Pods, password: Path) -> str:
    """The master of deploy/locust, which a worker has found."""
    folder = DEPLOY / "locust"
    [master] = pod_of(only(folder, "StatefulSet"))["containers"]
    [worker] = pod_of(only(folder, "Deployment"))["containers"]
    password.write_text(PASSWORD)
    login = options_of(master["env"], login=(password, "/run/secrets/locust/password"))
    host = only(folder, "Service")["metadata"]["name"]
    page = pods.run(master["args"], *RIGHTS, *login, host=host)
    pods.run(worker["args"], *RIGHTS, *options_of(worker["env"]))
    return page


def gate_of(pods: Pods, scenario: Path) -> str:
    """The Job of deploy/gate, about two users."""
    scenario.write_text(only(DEPLOY / "gate", "ConfigMap")["data"]["knee.toml"])
    [job] = pod_of(only(DEPLOY / "gate", "Job"))["containers"]
    options = options_of(job["env"], toml=(scenario, "/etc/harness/knee.toml"))
    short = ["--budget", "10s", "--max-users", "2", "--at-least", "2", "--output-tokens", "8"]
    return pods.run([*job["args"], *short], *RIGHTS, *options)


def test_the_gate_the_page_and_the_exporter(pods: Pods, tmp_path: Path) -> None:
    """A worker finds its master, whose page wants a password; the others answer as they should."""
    gate = gate_of(pods, tmp_path / "knee.toml")
    page = page_of(pods, tmp_path / "password")
    [exporter] = pod_of(only(DEPLOY / "exporter", "Deployment"))["containers"]
    pages = pods.run(exporter["args"], *RIGHTS)
    look = (
        "import base64, json, sys, urllib.request as u;"
        "r = u.Request('http://127.0.0.1:8089/stats/requests');"
        f"r.add_header('Authorization', 'Basic ' + base64.b64encode(b'admin:{PASSWORD}').decode())"
        ";print(len(json.load(u.urlopen(r))['workers']))"
    )
    wait_for(lambda: docker("exec", page, "python", "-c", look).stdout.strip() == "1")
    bare = (
        "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8089/stats/requests').url)"
    )
    assert "/login" in docker("exec", page, "python", "-c", bare).stdout
    probe = exporter["readinessProbe"]["httpGet"]["path"]
    look = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:9400{probe}').status)"
    wait_for(lambda: docker("exec", pages, "python", "-c", look).stdout.strip() == "200")
    code = pods.code(gate)
    words = said(gate)
    assert "The run folder: reports/knee-" in words
    assert code in (0, 5, 6), words  # ten seconds may be few, and never a reason to fail
