"""The schemas of tests/data/kubernetes: what a Kubernetes API server checks of deploy/, made small.

    python tests/kubernetes_schemas.py SCHEMAS CRD.yaml ...

SCHEMAS is a folder of JSON schemas, `kubernetes-json-schema/v1.36.0-local-strict` in the package
kubernetes-validate; each CRD is its operator's own file. Descriptions go, and so does what no kind
of ours refers to. A CRD's schema becomes strict: an unknown field, which an API server drops
silently, is an error here.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

import yaml

DATA: Final = Path(__file__).parent / "data/kubernetes"
KINDS: Final = {
    "batch/v1 Job": "job-batch-v1",
    "apps/v1 Deployment": "deployment-apps-v1",
    "apps/v1 StatefulSet": "statefulset-apps-v1",
    "v1 Service": "service-v1",
    "v1 ConfigMap": "configmap-v1",
    "v1 PersistentVolumeClaim": "persistentvolumeclaim-v1",
}
_REF: Final = re.compile(r'"(?:/api/_definitions\.json)?#/\$defs/([^"]+)"')
WORDS: Final = ("description", "format", "default")  # that check nothing
OPEN: Final = ("x-kubernetes-preserve-unknown-fields", "additionalProperties")


def without_words(schema: Any) -> Any:
    """Less what checks nothing; of a property that is called `description`, too, all is kept."""
    if isinstance(schema, list):
        return [without_words(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            kept[key] = {name: without_words(part) for name, part in value.items()}
        elif key not in WORDS and not key.startswith("x-kubernetes-group"):
            kept[key] = without_words(value)
    return kept


def standard(folder: Path) -> dict[str, Any]:
    """A schema for each of KINDS, and the definitions that they share."""
    defined = json.loads((folder / "_definitions.json").read_text())["$defs"]
    needed: dict[str, Any] = {}

    def resolved(schema: Any) -> Any:
        text = json.dumps(without_words(schema))
        for name in _REF.findall(text):
            if name not in needed:
                needed[name] = {}  # some refer to themselves
                needed[name] = resolved(defined[name])
        return json.loads(_REF.sub(r'"#/$defs/\1"', text))

    kinds = {}
    for kind, file in KINDS.items():
        schema = json.loads((folder / f"{file}.json").read_text())
        schema["properties"].pop("status", None)  # the server's
        kinds[kind] = resolved(schema)
    return {"kinds": kinds, "$defs": needed}


def strict(schema: Any) -> Any:
    """A structural schema as JSON Schema has it, without room for what it does not name."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            made[key] = {name: strict(part) for name, part in value.items()}
        elif not key.startswith("x-kubernetes"):
            made[key] = strict(value)
    if schema.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    if "properties" in schema and not any(map(schema.get, OPEN)):
        made["additionalProperties"] = False
    return made


def of_crd(file: Path) -> tuple[str, dict[str, Any]]:
    """(`GROUP/VERSION KIND`, its schema), of the version that is stored."""
    [crd] = [doc for doc in yaml.safe_load_all(file.read_text()) if doc]
    spec = crd["spec"]
    [version] = [version for version in spec["versions"] if version["storage"]]
    schema = strict(without_words(version["schema"]["openAPIV3Schema"]))
    own = {name: {"type": "string"} for name in ("apiVersion", "kind")}
    schema["properties"] |= {**own, "metadata": {"type": "object"}}
    schema["properties"].pop("status", None)
    schema["additionalProperties"] = False
    return f"{spec['group']}/{version['name']} {spec['names']['kind']}", schema


def main(schemas: str, *crds: str) -> None:
    """Write both files."""
    made = {
        "kubernetes.json": standard(Path(schemas)),
        "operators.json": {"kinds": dict(of_crd(Path(crd)) for crd in crds)},
    }
    for name, content in made.items():
        text = json.dumps(content, separators=(",", ":"), sort_keys=True)
        (DATA / name).write_text(f"{text}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
