"""An API server of Kubernetes as kubectl sees it, with a pod, a workload and a node.

It answers discovery, GET, PATCH and DELETE, keeps what it was told, and lists who changed what.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VERBS: Final = ["create", "delete", "get", "list", "patch", "update", "watch"]


def resource(name: str, kind: str, *, spaced: bool = True) -> dict[str, Any]:
    """A line of discovery."""
    singular = kind.lower() if "/" not in name else ""
    return {
        "name": name,
        "singularName": singular,
        "namespaced": spaced,
        "kind": kind,
        "verbs": VERBS,
    }


SCALE: Final = resource("deployments/scale", "Scale") | {"group": "autoscaling", "version": "v1"}
CORE: Final = [resource("pods", "Pod"), resource("nodes", "Node", spaced=False)]
APPS: Final = [resource("deployments", "Deployment"), SCALE]
POD: Final = "/api/v1/namespaces/vllm/pods/vllm-0"
WORKLOAD: Final = "/apis/apps/v1/namespaces/vllm/deployments/vllm"
NODE: Final = "/api/v1/nodes/node-1"


def version_of(group: str) -> dict[str, str]:
    return {"groupVersion": f"{group}/v1", "version": "v1"}


DISCOVERY: Final[dict[str, dict[str, Any]]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "groups": [
            {
                "name": "apps",
                "versions": [version_of("apps")],
                "preferredVersion": version_of("apps"),
            }
        ],
    },
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": CORE},
    "/apis/apps/v1": {"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": APPS},
}


class ApiServer(ThreadingHTTPServer):
    """`changes`: (method, path, body) of each request that changed something."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.changes: list[tuple[str, str, dict[str, Any]]] = []
        self.objects: dict[str, dict[str, Any]] = {
            POD: {"apiVersion": "v1", "kind": "Pod", "metadata": _named("vllm-0")},
            NODE: {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}, "spec": {}},
            WORKLOAD: {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": _named("vllm"),
                "spec": {
                    "replicas": 3,
                    "selector": {"matchLabels": {"app": "vllm"}},
                    "template": {"metadata": {"labels": {"app": "vllm"}}, "spec": {}},
                },
            },
        }

    def scale(self) -> dict[str, Any]:
        """The subresource."""
        return {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": _named("vllm"),
            "spec": {"replicas": self.objects[WORKLOAD]["spec"]["replicas"]},
        }


def _named(name: str) -> dict[str, str]:
    return {"name": name, "namespace": "vllm", "resourceVersion": "1"}


def _merge(into: dict[str, Any], patch: dict[str, Any]) -> None:
    """A merge patch, which is what kubectl's are here."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


class _Handler(BaseHTTPRequestHandler):
    server: ApiServer
    protocol_version = "HTTP/1.1"

    def _answer(self, method: str) -> None:
        path = self.path.partition("?")[0]
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(text) if text.startswith(b"{") else {}
        server = self.server
        if method != "GET":
            server.changes.append((method, path, body))
        if path == f"{WORKLOAD}/scale":
            _merge(server.objects[WORKLOAD], {"spec": body.get("spec", {})})
            self._send(200, server.scale())
        elif path in server.objects:
            _merge(server.objects[path], body if method == "PATCH" else {})
            self._send(200, server.objects[path])
        elif path in DISCOVERY:
            self._send(200, DISCOVERY[path])
        else:
            name = path.rpartition("/")[2]
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
            self._send(404, missing | {"reason": "NotFound", "message": f'"{name}" not found'})

    def _send(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._answer("GET")

    def do_PATCH(self) -> None:
        self._answer("PATCH")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def log_message(self, *_: object) -> None:
        """Nothing: `changes` has it."""


@contextmanager
def api_server(folder: Path) -> Iterator[tuple[ApiServer, Path]]:
    """It, and a kubeconfig with the context `staging`."""
    with ApiServer() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
            ],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "staging", "context": {"cluster": "c", "user": "u"}}],
        }
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        yield server, folder / "kubeconfig"
        server.shutdown()
