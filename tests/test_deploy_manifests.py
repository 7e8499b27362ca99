"""deploy/ as it is rendered: valid by Kubernetes' and the operators' schemas, and as promised."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml
from kubernetes_schemas import DATA
from manifests import COMPONENTS, DEPLOY, FORMS, TOP, only, pod_of, rendered

from harness.cli.app import main

STORED: Final = {
    name: json.loads((DATA / f"{name}.json").read_text()) for name in ("kubernetes", "operators")
}
KINDS: Final = STORED["kubernetes"]["kinds"] | STORED["operators"]["kinds"]
ALONE: Final = [form for form in FORMS if form not in COMPONENTS]
QUOTA: Final = {"cpu"}
pytestmark = pytest.mark.xdist_group("deploy")  # rendered once


def errors_of(doc: dict[str, Any]) -> list[str]:
    """Where it breaks its schema."""
    schema = KINDS[f"{doc['apiVersion']} {doc['kind']}"] | {"$defs": STORED["kubernetes"]["$defs"]}
    schema.pop("$id", None)
    found = jsonschema.Draft202012Validator(schema).iter_errors(doc)
    return [f"{error.json_path}: {error.message}" for error in found]


@pytest.mark.parametrize("form", ALONE)
def test_each_object_is_valid(form: str) -> None:
    """By the schema of its kind, where an unknown field is an error."""
    docs = rendered(DEPLOY / form)
    assert {doc["metadata"]["name"]: errors_of(doc) for doc in docs if errors_of(doc)} == {}
    assert docs


@pytest.mark.parametrize(
    ("form", "kind", "where", "value", "want"),
    [
        ("knee", "Job", "spec", {"backofLimit": 0}, "backofLimit"),
        ("exporter", "Deployment", "spec", {"replicas": "1"}, "'1' is not of type"),
        ("locust", "Service", "spec", {"selector": []}, "is not of type"),
        ("monitors", "PodMonitor", "spec", {"podMetricsEndpoint": []}, "podMetricsEndpoint"),
        ("operator-locust", "LocustTest", "spec", {"workers": 0}, "less than the minimum"),
        ("operator-hamouda", "LocustTest", "spec", {"autoquit": 0}, "autoquit"),
    ],
)
def test_a_mistake_is_found(form, kind, where, value, want) -> None:
    """A field that is misspelled or of another type, in each kind of schema."""
    doc = next(doc for doc in rendered(DEPLOY / form) if doc["kind"] == kind)
    wrong = doc | {where: doc[where] | value}
    assert any(want in error for error in errors_of(wrong)), errors_of(wrong)


@pytest.mark.parametrize(
    ("form", "n_kinds"), [("knee", 1), ("gate", 1), ("locust", 2), ("exporter", 1)]
)
def test_pods_have_few_rights_and_no_quota(form: str, n_kinds: int) -> None:
    """As docker-compose.yml has it; a quota on CPU would be measured as latency."""
    pods = [(doc["kind"], pod_of(doc)) for doc in rendered(DEPLOY / form) if pod_of(doc)]
    assert len(pods) == n_kinds
    for name, pod in pods:
        check_rights(name, pod)


def check_rights(name: str, pod: dict[str, Any]) -> None:
    """Of one pod."""
    assert pod["automountServiceAccountToken"] is False, name
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    [container] = pod["containers"]
    assert container["image"] == "vllm-harness"  # for kustomize's `images`
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    written = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/tmp", "/srv/harness/reports"} <= written  # noqa: S108 - the image's two volumes
    resources = container["resources"]
    assert (set(resources["requests"]), set(resources["limits"])) == ({"cpu", "memory"}, {"memory"})


@pytest.mark.parametrize("form", ["operator-locust", "operator-hamouda"])
def test_operators_get_no_quota_either(form: str) -> None:
    spec = only(DEPLOY / form, "LocustTest")["spec"]
    limits = [spec[part]["resources"]["limits"] for part in ("master", "worker")]
    assert [QUOTA & set(limit) for limit in limits] == [set(), set()]


def test_each_dashboard_is_a_config_map() -> None:
    """With the label that the sidecar of Grafana's chart looks for, and room for `apply`."""
    docs = rendered(DEPLOY / "dashboards")
    files = {name: text for doc in docs for name, text in doc["data"].items()}
    assert files == {
        path.name: path.read_text() for path in (TOP / "grafana/dashboards").glob("*.json")
    }
    assert {doc["metadata"]["labels"]["grafana_dashboard"] for doc in docs} == {"1"}
    assert max(len(text) for text in files.values()) < 1 << 20


def test_monitors_select_what_the_forms_make() -> None:
    """Each PodMonitor finds pods of a form, which have the port that it names."""
    made = [
        (form, pod_of(doc), doc["spec"]["template"]["metadata"]["labels"])
        for form in ALONE
        for doc in rendered(DEPLOY / form)
        if pod_of(doc)
    ]
    found: dict[str, list[str]] = {}
    for monitor in rendered(DEPLOY / "monitors"):
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        for form, pod, labels in made:
            ports = [port["name"] for port in pod["containers"][0].get("ports", ())]
            if selects(monitor["spec"]["selector"], labels) and endpoint["port"] in ports:
                found.setdefault(monitor["metadata"]["name"], []).append(form)
    assert found == {
        "vllm-harness-exporter": ["exporter"],
        "vllm-harness-run": ["gate", "knee"],
        "vllm-harness-locust": ["locust"],
    }


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a label selector takes these labels."""
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    one_of = all(
        labels.get(rule["key"]) in rule["values"] for rule in selector.get("matchExpressions", ())
    )
    return bool(labels) and wanted and one_of


def test_the_master_is_found_by_its_service() -> None:
    """Headless, it selects the master alone; workers name it, and 5557 is the port of both."""
    docs = {doc["kind"]: doc for doc in rendered(DEPLOY / "locust")}
    service, master, workers = docs["Service"], docs["StatefulSet"], docs["Deployment"]
    of_master, of_workers = (
        doc["spec"]["template"]["metadata"]["labels"] for doc in (master, workers)
    )
    assert service["spec"]["clusterIP"] == "None"
    assert [
        selects({"matchLabels": service["spec"]["selector"]}, labels)
        for labels in (of_master, of_workers)
    ] == [True, False]
    [worker] = pod_of(workers)["containers"]
    assert worker["args"][-2:] == ["--master-host", service["metadata"]["name"]]
    assert master["spec"]["serviceName"] == service["metadata"]["name"]


@pytest.mark.parametrize("form", ["knee", "gate"])
def test_what_the_job_runs_is_a_plan(form: str, tmp_path: Path, capsys) -> None:
    """Its arguments and its scenario file are read by the command itself."""
    [container] = pod_of(only(DEPLOY / form, "Job"))["containers"]
    config = only(DEPLOY / form, "ConfigMap")
    (tmp_path / "knee.toml").write_text(config["data"]["knee.toml"])
    args = [str(tmp_path / "knee.toml") if "/etc" in word else word for word in container["args"]]
    assert main([*args, "--dry-run", "--out", str(tmp_path / "out")]) == 0
    assert "http://vllm:8000" in capsys.readouterr().out
    # kustomize has put the name with its hash into the Job
    [volume] = [v for v in pod_of(only(DEPLOY / form, "Job"))["volumes"] if "configMap" in v]
    assert volume["configMap"]["name"] == config["metadata"]["name"]


@pytest.mark.parametrize("form", ["knee", "gate"])
def test_an_overlay_uploads(form: str, tmp_path: Path) -> None:
    """The URL comes from a Secret into the environment; no argument has it."""
    here = {name: os.path.relpath(DEPLOY / name, tmp_path) for name in (form, "upload")}
    overlay = {"resources": [here[form]], "components": [here["upload"]]}
    overlay["images"] = [{"name": "vllm-harness", "newName": "mine/vllm-harness", "newTag": "1.2"}]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    job = only(tmp_path, "Job")
    [container] = pod_of(job)["containers"]
    assert container["image"] == "mine/vllm-harness:1.2"
    assert container["args"][-2:] == ["--upload", "$UPLOAD_URL"]
    [variable] = [each for each in container["env"] if each["name"] == "UPLOAD_URL"]
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "upload", "key": "url"}}
    assert errors_of(job) == []
