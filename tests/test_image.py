"""The image and the wheel as users get them: in real containers, with a read-only root."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from compose import wait_for, where

from harness import __version__
from harness.server.address import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

TOP = Path(__file__).parents[1]
IMAGE = os.environ.get(
    "HARNESS_TEST_IMAGE", "vllm-harness:test"
)  # that of test_stack_compose.py: built once
PYTHON = re.findall(r"^ARG PYTHON_IMAGE=(\S+)", (TOP / "Dockerfile").read_text(), re.MULTILINE)[0]
LARGEST_MB = 200  # above the base image
LARGEST_WORKER_MB = 150
READ_ONLY = ("--rm", "--read-only", "--cap-drop", "ALL", "--network", "host")
HEALTHY = runpy.run_path(str(TOP / "docker/healthy.py"))
INIT = ["/sbin/docker-init", "--", "/usr/local/bin/entrypoint"]
LOCUST = ["/opt/harness/bin/python", "/opt/harness/bin/locust"]


def docker(*words: object) -> subprocess.CompletedProcess[str]:
    """To its end, whatever that is."""
    command = ["docker", *map(str, words)]
    env = os.environ | where()
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "program", "arguments"),
    [
        ([*INIT, "--worker", "-f", "a.py"], "locust", ["--worker", "-f", "a.py"]),
        ([*INIT, "locust", "-f", "a.py"], "locust", ["-f", "a.py"]),
        ([*INIT, "vllm-harness", "engine"], "vllm-harness", ["engine"]),
        ([*INIT, "engine", "--port", "1"], "vllm-harness", ["engine", "--port", "1"]),
        ([*LOCUST, "--master"], "locust", ["--master"]),
        (["/pause"], "vllm-harness", []),
    ],
)
def test_what_the_health_check_takes_for_running(words, program, arguments) -> None:
    """With an init before it and without."""
    assert HEALTHY["running"](words) == (program, arguments)


@pytest.mark.parametrize(
    ("words", "want"),
    [
        ([], 8089),
        (["--web-port", "1", "-P", "2"], 2),
        (["--web-port=3"], 3),
        (["--port", "4"], 8089),
    ],
)
def test_the_port_that_the_health_check_asks(words, want) -> None:
    """The last one that an option names."""
    assert HEALTHY["value"](words, ["--web-port", "-P"], 8089) == want


@pytest.fixture(scope="module")
def image() -> dict[str, Any]:
    """`docker inspect` of the image, which is built if it is not there."""
    built = docker("build", "--quiet", "--network", "host", "--tag", IMAGE, TOP)
    assert built.returncode == 0, built.stderr
    [found] = json.loads(docker("inspect", IMAGE).stdout)
    return dict(found)


OURS, LOCUSTS = f"vllm-harness {__version__}", "locust 2."


@pytest.mark.docker
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("", 0, "usage: vllm-harness"),
        ("knee", 2, "no URL was given"),
        ("nothing", 2, "the command is 'nothing'"),
        ("vllm-harness --version", 0, OURS),
        ("locust --version", 0, LOCUSTS),
        ("--master --version", 0, LOCUSTS),
        ("-f locustfiles/chat.py --list", 0, "Chat"),
        ("sh -c id", 0, "uid=10001(harness)"),
    ],
)
def test_the_image_runs_what_it_is_given(image, words, code, says) -> None:
    """A subcommand alone, Locust's options alone as its operator gives them, or a whole command."""
    assert image["Config"]["User"] == "10001:10001"
    done = docker("run", *READ_ONLY, IMAGE, *words.split())
    assert done.returncode == code
    assert says in done.stdout + done.stderr


@pytest.fixture
def containers(image) -> Iterator[dict[str, str]]:
    """An engine, a master and its worker, and a worker without a master, by their names."""
    assert image["Config"]["Healthcheck"]["Test"][0] == "CMD"
    engine, web, master, nobody = free_ports(4, set())
    file = f"-f locustfiles/chat.py --host http://127.0.0.1:{engine}"
    given = {
        "engine": f"engine --port {engine}",
        "master": f"{file} --master --web-port {web} --master-bind-port {master}",
        "worker": f"{file} --worker --master-host 127.0.0.1 --master-port {master}",
        "alone": f"{file} --worker --master-host 127.0.0.1 --master-port {nobody}",
    }
    started: dict[str, str] = {}
    try:
        for name, words in given.items():
            done = docker("run", "--detach", "--init", *READ_ONLY, IMAGE, *words.split())
            assert done.returncode == 0, done.stderr
            started[name] = done.stdout.strip()
        yield started
    finally:
        docker("rm", "--force", "--volumes", *started.values())


def health(name: str) -> str:
    """What Docker says of it."""
    return docker("inspect", "--format", "{{.State.Health.Status}}", name).stdout.strip()


@pytest.mark.docker
def test_containers_become_healthy(containers) -> None:
    """By the image's own check; a worker only once it has a master."""
    *others, alone = containers.values()
    wait_for(lambda: {health(container) for container in others} == {"healthy"})
    check = docker("exec", alone, "python", "/opt/harness/healthy.py")
    assert (check.returncode, check.stderr) == (1, "")
    assert health(alone) == "starting"


@pytest.mark.docker
def test_the_image_is_small(image) -> None:
    """All that the Dockerfile adds to the base image."""
    [base] = json.loads(docker("inspect", PYTHON).stdout)
    assert (image["Size"] - base["Size"]) / 1e6 < LARGEST_MB


@pytest.mark.docker
def test_the_wheel_alone(tmp_path: Path) -> None:
    """One for all Pythons from 3.11 on; in a bare container it is all that the commands need."""
    uv = TOP.resolve() / ".venv/bin/uv"
    build = [str(uv), "build", "--quiet", "--wheel", "--out-dir", str(tmp_path), str(TOP)]
    subprocess.run(build, check=True)
    [wheel] = tmp_path.glob("*.whl")
    assert re.search(rf"-{__version__}-cp311-abi3-linux_\w+\.whl$", wheel.name)
    mounts = {
        uv.resolve(): "/uv",
        TOP / ".ci/try-wheel.sh": "/try-wheel.sh",
        wheel: f"/{wheel.name}",
    }
    options = [word for source, to in mounts.items() for word in ("-v", f"{source}:{to}:ro")]
    done = docker(
        *("run", "--rm", "--network", "host", *options, "--env", "UV=/uv", PYTHON),
        *("/try-wheel.sh", f"/{wheel.name}"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [size_mb] = re.findall(r"an environment of (\d+) MB", done.stdout)
    assert int(size_mb) < LARGEST_WORKER_MB
