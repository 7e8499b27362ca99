"""deploy/ as kustomize renders it, and what the operators make of their LocustTest."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

TOP: Final = Path(__file__).parents[1]
DEPLOY: Final = TOP / "deploy"
FORMS: Final = sorted(path.parent.name for path in DEPLOY.glob("*/kustomization.yaml"))
COMPONENTS: Final = ("upload",)  # parts of other forms, nothing alone
MASTER_PORT: Final = 5557


def kubectl() -> str:
    """Of the wheel, whose version is that of the lock; else that of this machine."""
    beside = Path(sys.executable).with_name("kubectl")
    return str(beside) if beside.exists() else shutil.which("kubectl") or "kubectl"


@cache
def rendered(folder: Path) -> tuple[dict[str, Any], ...]:
    """The objects that `kubectl apply --kustomize` sends."""
    command = [kubectl(), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def only(folder: Path, kind: str) -> dict[str, Any]:
    """The one object of this kind."""
    [found] = [doc for doc in rendered(folder) if doc["kind"] == kind]
    return found


def pod_of(doc: dict[str, Any]) -> dict[str, Any]:
    """The spec of the pods that a Job, Deployment or StatefulSet makes; {} of what makes none."""
    spec = doc.get("spec", {})
    return dict(spec.get("template", {}).get("spec", {}))


class Command(NamedTuple):
    """A container's arguments, for how many pods, and where they look for each other."""

    host: str  # that of the Service before the pod
    args: list[str]
    pods: int = 1


def by_locusts_operator(test: dict[str, Any]) -> tuple[Command, Command]:
    """Master and workers of locust.io/v1, as build_master_job and build_worker_job make them."""
    host = f"{test['metadata']['name']}-master"
    spec = test["spec"]
    given = shlex.split(spec["args"])
    return (
        Command(host, ["--master", *given]),
        Command("", ["--worker", "--master-host", host, *given], spec["workers"]),
    )


def by_hamoudas_operator(test: dict[str, Any]) -> tuple[Command, Command]:
    """Those of locust.io/v2, as BuildMasterCommand and BuildWorkerCommand make them."""
    host = f"{test['metadata']['name']}-master"
    master, worker = test["spec"]["master"], test["spec"]["worker"]
    replicas = worker["replicas"]
    of_master = [
        *master["command"].split(),
        *("--master", f"--master-port={MASTER_PORT}", f"--expect-workers={replicas}"),
        *("--autostart", "--autoquit", str(master["autoquit"]["timeout"])),
        *("--enable-rebalancing", "--only-summary"),
    ]
    of_worker = [
        *worker["command"].split(),
        *("--worker", f"--master-port={MASTER_PORT}", f"--master-host={host}"),
    ]
    return Command(host, of_master), Command("", of_worker, replicas)
