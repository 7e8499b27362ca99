"""The stack of docker-compose.yml in a copy of this tree, with an .env and secrets of its own."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import study_process

TOP = Path(__file__).parents[1]
PLAIN, SEARCH = "locustfiles/chat.py", "locustfiles/knee.py"  # what Locust runs
# Where `.ci/docker.sh` puts an engine of its own, if it must; the folder is ignored by git.
HOME = TOP / ".docker"
# it runs beside everything else, and each look may be a command in a container
wait_for = partial(study_process.wait_for, patience_s=180, every_s=0.5)


def where() -> dict[str, str]:
    """What `docker` must be told of the engine."""
    file = HOME / "env"
    told = file.read_text().removeprefix("export ").split() if file.exists() else []
    return dict(setting.split("=", 1) for setting in told)


def missing() -> str:
    """Why no stack can be started here; "" where one can."""
    for what in ("compose version", "info"):
        try:
            done = subprocess.run(
                ["docker", *what.split()],
                env=os.environ | where(),
                capture_output=True,
                check=False,
            )
        except FileNotFoundError:
            return "docker is not installed"
        if done.returncode:
            return f"`docker {what}` fails: {done.stderr.decode().strip().splitlines()[-1]}"
    return ""


class Stack:
    """One Compose project in `folder`; `login` is the password of Locust's page."""

    def __init__(self, folder: Path, port: int) -> None:
        """Copy what git knows or would know; nothing is started."""
        names = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(names, cwd=TOP, capture_output=True, text=True, check=True).stdout
        for name in filter(lambda name: (TOP / name).exists(), listed.splitlines()):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TOP / name, folder / name, follow_symlinks=False)
        self.folder, self.url, self.login = folder, f"http://127.0.0.1:{port}", ""
        self.project = f"harness-test-{os.getpid()}"
        drop = ("COMPOSE_PROFILES", "HARNESS_TARGET", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
        self.env = {k: v for k, v in (os.environ | where()).items() if k not in drop}
        self.env |= {
            "COMPOSE_PROJECT_NAME": self.project,
            "LOCUST_PORT": str(port),
            "HARNESS_TAG": "test",
            "HARNESS_BUILD_NETWORK": "host",
            "LOCUST_LOGIN": "yes",
            "HARNESS_LOCUSTFILE": PLAIN,
        }

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A command in the copy, to its end."""
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.env | more,
            text=True,
            capture_output=True,
            check=False,
            timeout=300,
            stdin=subprocess.DEVNULL,
        )

    def compose(self, *arguments: str, **more: str) -> str:
        """`docker compose`: its stdout; fails the test where it fails."""
        done = self.run("docker", "compose", *arguments, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def containers(self) -> dict[str, dict[str, Any]]:
        """`docker inspect` of every container, by name without the project's."""
        listed = self.compose("ps", "--all", "--quiet").split()
        done = self.run("docker", "inspect", *listed)
        found = json.loads(done.stdout)
        return {c["Name"].removeprefix(f"/{self.project}-"): c for c in found}

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Prometheus' answer; it is not published, so it is asked from inside."""
        ask = ["exec", "-T", "prometheus", "promtool", "query", "-o", "json", "instant"]
        return list(json.loads(self.compose(*ask, "http://localhost:9090", expression)))

    def value(self, expression: str) -> float | None:
        """Of a query with one answer; None without one."""
        found = self.query(expression)
        return float(found[0]["value"][1]) if found else None

    def ask(
        self, path: str, form: str | dict[str, str] = "", user: str = "admin"
    ) -> tuple[str, str]:
        """Locust's page as curl asks it: (the address where it ended, the text)."""
        data = form if isinstance(form, str) else json.dumps(form)
        request = urllib.request.Request(self.url + path, data=data.encode() or None)  # noqa: S310 - ours
        if not isinstance(form, str):
            request.add_header("Content-Type", "application/json")
        if self.login:
            words = base64.b64encode(f"{user}:{self.login}".encode()).decode()
            request.add_header("Authorization", f"Basic {words}")
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - ours
            return answer.url.removeprefix(self.url), answer.read().decode()

    def stats(self) -> dict[str, Any]:
        """What Locust's page polls."""
        return dict(json.loads(self.ask("/stats/requests")[1]))

    def requests(self) -> int:
        """That Locust has counted."""
        rows = self.stats()["stats"][:-1]  # without the sum
        return int(sum(row["num_requests"] for row in rows if row["method"] != "TTFT"))
