"""What the tree may hold: no machine's paths, no index addresses, no huge files."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP = {
    "locustfiles",
    "drills",
    "harness",
    "lab",
    "grafana",
    "reports",
    "tests",
    "docker",
    "docker-compose.yml",
    "Dockerfile.vllm",
    "Dockerfile",
    "pyproject.toml",
    "prometheus",
    "docs",
    "bench",
    "README.md",
    "Makefile",
    "LICENSE",
    "CHANGELOG.md",
    "AGENTS.md",
    "action.yml",
    "examples",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "llms.txt",
    "requirements.lock",
    ".pre-commit-config.yaml",
    ".github",
    ".ci",
    ".gitignore",
    ".dockerignore",
    ".env.example",
}
LISTED = subprocess.run(
    ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout
TRACKED = [Path(name) for name in LISTED.splitlines()]
CODE = [path for path in TRACKED if path.suffix == ".py" and (ROOT / path).exists()]
UNWANTED = {
    "a home folder": r"/(?:root|home/\w+)/",
    "a build machine's folder": r"/work/(?:main|shared)",
    "an index's address": r"files\.pythonhosted|pypi\.org|--(?:extra-)?index-url|file:///",
}
HERE = Path("tests/test_project_tree.py")  # holds the patterns themselves
PRINTABLE = {".py", ".md", ".toml", ".yml", ".yaml", ".json", ".lock", ".sh", ".html", ".svg", ""}
LARGEST = 1 << 20


def text_of(path: Path) -> str:
    """A tracked file's text; empty for pictures and for what is gone."""
    full = ROOT / path
    if path.suffix not in PRINTABLE or not full.is_file():
        return ""
    return full.read_text(errors="replace")


def test_no_traces_of_a_machine() -> None:
    """Nothing in the tree depends on, or tells of, the machine it was written on."""
    for what, pattern in UNWANTED.items():
        paths = [path for path in TRACKED if path != HERE and re.search(pattern, text_of(path))]
        assert [str(path) for path in paths] == [], what


LOCKS = ("requirements.lock", ".ci/dist.lock")


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_holds_names_versions_and_hashes_only(lock: str) -> None:
    """Every line of it is a pin, a hash or a comment about who needs it."""
    line = re.compile(r"[a-z0-9.-]+==\S+.*\\|    --hash=sha256:[0-9a-f]{64}( \\)?|    #.*")
    lines = (ROOT / lock).read_text().splitlines()
    assert [text for text in lines if not line.fullmatch(text)] == []


def test_locks_are_of_this_pyproject() -> None:
    """Each direct dependency is pinned: `make lock` was run after the last change."""
    project = (ROOT / "pyproject.toml").read_text()
    lock = "".join((ROOT / name).read_text() for name in LOCKS)
    wanted = set(re.findall(r'^  "([a-z0-9-]+)>=', project, re.MULTILINE))
    pinned = set(re.findall(r"^([a-z0-9.-]+)==", lock, re.MULTILINE))
    assert wanted - pinned == set()


def test_top_level_is_as_designed() -> None:
    """Nothing new at the top without a place in docs/design.md."""
    assert {path.parts[0] for path in TRACKED} - TOP == set()


def test_no_large_files() -> None:
    """The tree stays quick to clone."""
    present = [path for path in TRACKED if (ROOT / path).is_file()]
    large = [path for path in present if (ROOT / path).stat().st_size > LARGEST]
    assert [str(path) for path in large] == []


def test_only_pictures_and_recorded_pages_are_binary() -> None:
    """What is built or computed is not tracked."""
    present = [path for path in TRACKED if (ROOT / path).is_file()]
    binary = [path for path in present if b"\0" in (ROOT / path).read_bytes()]
    assert [str(path) for path in binary if path.suffix not in {".png", ".gz"}] == []


def missing_exports(path: Path) -> set[str]:
    """What `__all__` names and the file does not have."""
    tree = ast.parse(text_of(path))
    exports: list[str] = []
    names: set[str] = set()
    tried = [node for one in tree.body if isinstance(one, ast.Try | ast.If) for node in one.body]
    for node in [*tree.body, *tried]:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            left = node.targets if isinstance(node, ast.Assign) else [node.target]
            targets = {target.id for target in left if isinstance(target, ast.Name)}
            names |= targets
            if "__all__" in targets and node.value is not None:
                exports = ast.literal_eval(node.value)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names |= {alias.asname or alias.name for alias in node.names}
    return set(exports) - names


def test_exports_are_real() -> None:
    """`__all__`, where there is one, names what the file has (ruff keeps it sorted)."""
    missing = {str(path): missing_exports(path) for path in CODE}
    assert {path: names for path, names in missing.items() if names} == {}


# A file may be as long as its subject; a function is read in a minute (CONTRIBUTING.md).
FUNCTION_LINES = 70


def test_functions_stay_readable() -> None:
    """Nobody reads a longer one in a minute."""
    long = []
    for path in CODE:
        if path.parts[0] not in {"harness", "lab"}:
            continue
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    long.append(f"{path}: {node.name}: {lines} lines")
    assert long == []
