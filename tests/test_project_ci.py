"""docs/ci.md and AGENTS.md: what people paste, and what programs read, is as the code has it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cli.app import parser

TOP = Path(__file__).parents[1]
CI = (TOP / "docs/ci.md").read_text()
AGENTS = (TOP / "AGENTS.md").read_text()
ACTION: dict[str, Any] = yaml.safe_load((TOP / "action.yml").read_text())
SCHEMA: dict[str, Any] = json.loads((TOP / "docs/result.schema.json").read_text())
SNIPPETS = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", CI, re.DOTALL)]


def steps_in(value: Any) -> list[dict[str, Any]]:
    """Every step of a snippet that uses something."""
    if isinstance(value, dict):
        own = [value] if "uses" in value else []
        return own + [step for one in value.values() for step in steps_in(one)]
    if isinstance(value, list):
        return [step for one in value for step in steps_in(one)]
    return []


STEPS = [step for step in steps_in(SNIPPETS) if step["uses"].startswith("OWNER/")]


def test_the_page_begins_with_a_whole_workflow() -> None:
    """It has triggers, permissions and a job; other actions are pinned."""
    assert CI.index("```yaml") < 200
    assert {"name", True, "permissions", "jobs"} == set(SNIPPETS[0])  # YAML reads `on` as true
    used = [step["uses"] for step in steps_in(SNIPPETS) if step not in STEPS]
    assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", one)] == []


@pytest.mark.parametrize("step", STEPS)
def test_what_is_pasted_is_accepted(step: dict[str, Any]) -> None:
    """The action has these inputs, and the command these options."""
    given = step["with"]
    assert set(given) <= set(ACTION["inputs"])
    options = re.sub(r"\$\{\{.*?\}\}", "", given.get("options", "")).split()
    slos = [f"--slo={limit}" for limit in given["slo"].split()]
    command = given.get("command", ACTION["inputs"]["command"]["default"])
    args = parser().parse_args([command, given["url"], *slos, *options])
    assert [str(slo) for slo in args.slo] == given["slo"].split()


def test_the_tables_have_every_input_and_output() -> None:
    """Of action.yml."""
    rows = re.findall(r"^\| `([\w-]+)` \|", CI, re.MULTILINE)
    assert set(rows) == {*ACTION["inputs"], *ACTION["outputs"]}


def test_the_line_for_gitlab_parses() -> None:
    """The script's second line is a command."""
    (line,) = [line for line in SNIPPETS[-1]["slo"]["script"] if line.startswith("vllm-harness")]
    parser().parse_args(shlex.split(line)[1:])


def has(schema: dict[str, Any], path: list[str]) -> bool:
    """Whether objects that fit the schema have the field."""
    for choice in schema.get("anyOf", ()):
        if has(choice, path):
            return True
    if "$ref" in schema:
        return has(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], path)
    if not path:
        return True
    name, *rest = path
    properties = schema.get("properties", {})
    if name.removesuffix("[]") not in properties:
        return False
    found = properties[name.removesuffix("[]")]
    return has(found["items"] if name.endswith("[]") else found, rest)


FIELDS = re.findall(r"`\.([\w.\[\]]+)`", AGENTS)


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_is_in_the_result(field: str) -> None:
    """By the schema; and one that nobody has is found out."""
    assert has(SCHEMA, field.split("."))
    assert not has(SCHEMA, [*field.split("."), "nobody"])


def test_the_codes_are_all_there() -> None:
    """Those of docs/exit-codes.md."""
    code = re.compile(r"^\| (\d+) \|", re.MULTILINE)
    page = (TOP / "docs/exit-codes.md").read_text()
    assert code.findall(AGENTS) == code.findall(page)
