"""Events in a cluster: the real kubectl against an API server of our own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from api_server import NODE, POD, WORKLOAD, ApiServer, api_server
from manifests import kubectl
from study_process import wait_for

from harness.drill.cluster import Cluster
from harness.errors import ServerUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from study_process import Command

DRILL: Final = """
title = "Pods"
[servers]
engines = 1
context = "staging"
namespace = "vllm"
[load]
prompt-tokens = 16
output-tokens = 4
[[phase]]
name = "calm"
rate = "2/s"
for = "30s"
[[event]]
do = "scale"
at = "1s"
for = "25s"
workload = "deployment/vllm"
replicas = 1
[[event]]
do = "cordon"
at = "1s"
for = "25s"
node = "node-1"
[[event]]
do = "delete-pod"
at = "2s"
pod = "vllm-0"
[[event]]
do = "rollout-restart"
at = "2s"
workload = "deployment/vllm"
[[expect]]
lost = 0
"""


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """The server that kubectl finds by its kubeconfig."""
    beside = Path(kubectl()).parent
    with api_server(tmp_path) as (server, config):
        monkeypatch.setenv("KUBECONFIG", str(config))
        monkeypatch.setenv("HOME", str(tmp_path))  # kubectl keeps what it discovers there
        monkeypatch.setenv("PATH", f"{beside}{os.pathsep}{os.environ['PATH']}")
        yield server


def spec_of(server: ApiServer) -> tuple[Any, Any]:
    """(replicas of the workload, whether the node is cordoned)."""
    objects = server.objects
    return objects[WORKLOAD]["spec"]["replicas"], objects[NODE]["spec"].get("unschedulable", False)


@pytest.mark.process
def test_what_each_does_and_undoes(api: ApiServer) -> None:
    """As often as it may be asked: back to what was, and a node that was cordoned stays so."""
    cluster = Cluster("staging", "vllm")
    cluster.check([("pod", "vllm-0"), ("deployment/vllm",), ("node", "node-1")])
    cluster.scale("deployment/vllm", 1)
    cluster.scale("deployment/vllm", 0)
    cluster.cordon("node-1")
    assert spec_of(api) == (0, True)
    for _ in range(2):
        cluster.scale_back("deployment/vllm")
        cluster.uncordon("node-1")
    assert spec_of(api) == (3, False)
    api.objects[NODE]["spec"]["unschedulable"] = True
    cluster.cordon("node-1")
    cluster.uncordon("node-1")
    assert spec_of(api) == (3, True)
    cluster.delete_pod("vllm-0")
    assert api.changes[-1][:2] == ("DELETE", POD)
    cluster.restart("deployment/vllm")
    annotations = api.objects[WORKLOAD]["spec"]["template"]["metadata"]["annotations"]
    assert list(annotations) == ["kubectl.kubernetes.io/restartedAt"]
    with pytest.raises(ServerUnreachable, match=r"get pod vllm-9.*not found"):
        cluster.check([("pod", "vllm-9")])
    with pytest.raises(ServerUnreachable, match='context "production" does not exist'):
        Cluster("production", "vllm").check([("pod", "vllm-0")])


@pytest.mark.process
def test_nothing_happens_unless_it_is_allowed(
    api: ApiServer, tmp_path: Path, command_here: Command
) -> None:
    """A dry run prints each command and asks nobody; without --allow-context it is refused."""
    (tmp_path / "pods.toml").write_text(DRILL)
    dry = command_here("drill", str(tmp_path / "pods.toml"), "--dry-run")
    refused = command_here("drill", str(tmp_path / "pods.toml"), "--allow-context", "production")
    assert (dry.returncode, refused.returncode) == (0, 2), dry.stderr
    prefix = "kubectl --context=staging --namespace=vllm"
    assert [line.partition(": ")[2] for line in dry.stdout.splitlines() if prefix in line] == [
        f"{prefix} scale deployment/vllm --replicas=1",
        f"{prefix} scale deployment/vllm --replicas=AS_BEFORE",
        f"{prefix} cordon node-1",
        f"{prefix} uncordon node-1",
        f"{prefix} delete pod vllm-0",
        f"{prefix} rollout restart deployment/vllm",
    ]
    assert "expected --allow-context staging" in refused.stderr
    assert api.changes == []


@pytest.mark.process
def test_ctrl_c_undoes_what_is_under_way(api: ApiServer, tmp_path: Path) -> None:
    """In the middle of two events: as many pods as before, and the node takes pods again."""
    (tmp_path / "pods.toml").write_text(DRILL)
    command = [sys.executable, "-m", "harness", "drill", str(tmp_path / "pods.toml")]
    command += ["--allow-context", "staging", "--quiet", "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as drill:
        wait_for(lambda: spec_of(api) == (1, True) and len(api.changes) > 3)
        drill.send_signal(signal.SIGINT)
        said = b"".join(drill.communicate())
    assert (drill.returncode, spec_of(api)) == (130, (3, False)), said
    changed = [(method, path) for method, path, _ in api.changes]
    assert {("DELETE", POD), ("PATCH", WORKLOAD), ("PATCH", NODE)} <= set(changed)
