"""Each hook of .pre-commit-config.yaml finds a planted fault, and nothing where there is none."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

TOP = Path(__file__).parents[1]
CONFIG: dict[str, Any] = yaml.safe_load((TOP / ".pre-commit-config.yaml").read_text())
HOOKS: dict[str, Any] = {hook["id"]: hook for hook in CONFIG["repos"][0]["hooks"]}
JOB = "    name: a\n    runs-on: ubuntu-24.04\n    steps:\n{}"
STEPS = "on: push\npermissions: {{}}\njobs:\n  a:\n" + JOB
# by hook: a file's name, a text with a fault, and one without
CASES = {
    "ruff-check": ("a.py", "import os\n", '"""A."""\n'),
    "ruff-format": ("a.py", "a  =  1\n", "a = 1\n"),
    "mypy": ("a.py", 'a: int = "b"\n', "a: int = 1\n"),
    "yamllint": ("a.yml", "a: 1\na: 2\n", "a: 1\n"),
    "shellcheck": ("a.sh", "#!/bin/sh\necho $1\n", '#!/bin/sh\necho "$1"\n'),
    "hadolint": ("Dockerfile", "FROM debian\n", "FROM debian:13\n"),
    "compose-schema": ("c.yml", "services: 1\n", "services: {a: {image: b}}\n"),
    "workflow-schema": ("w.yml", "jobs: 1\n", STEPS.format("      - run: a\n")),
    "zizmor": (
        "w.yml",
        STEPS.format("      - uses: a/b@main\n"),
        STEPS.format("      - run: a\n"),
    ),
    "actionlint": (
        "w.yml",
        STEPS.format("      - run: echo ${{ gihub.ref }}\n"),
        STEPS.format("      - run: a\n"),
    ),
}


def test_every_hook_is_tried() -> None:
    """Each is ours, from .venv: nothing is fetched."""
    assert list(HOOKS) == list(CASES)
    assert [repo["repo"] for repo in CONFIG["repos"]] == ["local"]
    assert all(hook["entry"].startswith(".venv/bin/") for hook in HOOKS.values())


@pytest.mark.process
@pytest.mark.parametrize("hook", CASES)
def test_a_hook(hook: str, tmp_path: Path) -> None:
    """It refuses the one file and takes the other."""
    name, wrong, right = CASES[hook]
    path = tmp_path / name
    (tmp_path / "__init__.py").touch()
    codes = []
    command = [*shlex.split(HOOKS[hook]["entry"]), str(path)]
    for text in (wrong, right):
        path.write_text(text)
        done = subprocess.run(command, cwd=TOP, capture_output=True, check=False)
        codes.append(done.returncode)
    assert codes[0] != 0
    assert codes[1] == 0
