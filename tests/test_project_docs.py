"""The documents say what the code does."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from report_folder import make

from harness import errors
from harness.cli import plain
from harness.cli.app import COMMANDS, parser
from harness.measure.result import Result
from harness.measure.typed import from_json, to_json
from harness.runfolder import names

ROOT = Path(__file__).parents[1]
PAGES = runpy.run_path(str(ROOT / "docs/generate.py"))["PAGES"]
SCHEMA = json.loads((ROOT / "docs/result.schema.json").read_text())
PROSE = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("name", PAGES)
def test_generated_equals_committed(name: str) -> None:
    """`make docs` was run after the last change of a table."""
    assert (ROOT / "docs" / name).read_text() == PAGES[name]()


def test_every_state_of_a_result_is_documented() -> None:
    """With its meaning: a state without a comment beside it would be missing from the page."""
    states = {name: one["enum"] for name, one in SCHEMA["$defs"].items() if "enum" in one}
    page = (ROOT / "docs/result.md").read_text()
    told = {
        name: re.findall(r"^\| (?:`(\w+)`|empty) \|", part, re.MULTILINE)
        for name, part in re.findall(r"### (\w+)\n(.*?)(?=\n#)", page, re.DOTALL)
    }
    assert {name: told[name] for name in states} == states


def test_results_fit_the_schema(tmp_path: Path) -> None:
    """A run's with failures; and the sample's, to which fields may have been added since."""
    make(tmp_path / "run", seconds=2, levels=(1, 8, 32), fail_above=16)
    written = json.loads((tmp_path / "run" / names.RESULT).read_text())
    assert "inf" in {level["ttft_ms"]["p95"] for level in written["levels"]}
    sample = json.loads((ROOT / "reports/samples" / names.RESULT).read_text())
    again = to_json(from_json(Result, sample))
    validator = Draft202012Validator(SCHEMA)
    assert [e.json_path for told in (written, again) for e in validator.iter_errors(told)] == []
    assert [e.json_path for e in validator.iter_errors(written | {"status": "good"})] == [
        "$.status"
    ]
    assert [key for key in sample if key not in SCHEMA["properties"]] == []


def test_exit_codes_are_documented() -> None:
    """docs/exit-codes.md has one row for each code that the code can end with."""
    kinds = [kind.exit_code for kind in vars(errors).values() if isinstance(kind, type)
             and issubclass(kind, errors.HarnessError)]  # fmt: skip
    codes = {*kinds, *(code for name, code in vars(errors).items() if name.startswith("EXIT_"))}
    page = (ROOT / "docs/exit-codes.md").read_text()
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == codes


def test_readme_opens_with_what_it_does_and_the_two_commands() -> None:
    """Title, one paragraph, then `make knee` and `make test`."""
    _, first, commands, *_ = (ROOT / "README.md").read_text().split("\n\n")
    assert first.count(".") == 1
    assert [line.split("#")[0].split() for line in commands.splitlines()] == [
        ["make", "knee"],
        ["make", "test"],
    ]


def test_readme_names_every_command() -> None:
    """The table of commands is whole."""
    names = {command.__name__.rpartition(".")[2] for command in COMMANDS}
    rows = re.findall(r"^\| `vllm-harness (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert set(rows) == names


@pytest.mark.parametrize("path", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_documented_commands_parse(path: Path) -> None:
    """Every indented `vllm-harness` line in the documents is one that the command accepts."""
    text = path.read_text().replace("\\\n", " ")
    lines = re.findall(r"^ {4}(?:\.venv/bin/)?vllm-harness ([^>#\n]*)", text, re.MULTILINE)
    for args in [parser().parse_args(line.split()) for line in lines]:
        if "embedded" in args:
            plain.target_options(args)


@pytest.mark.parametrize("path", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    """Relative links and pictures name files that exist."""
    targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_the_benchmark_measures_the_page_too() -> None:
    """Each script that `make bench` starts is there, and bench/README.md says what it measures."""
    shown = subprocess.run(
        ["make", "-n", "bench"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    scripts = re.findall(r"bench/(\w+\.py)", shown)
    assert scripts == ["matrix.py", "live_page.py"]
    told = (ROOT / "bench/README.md").read_text()
    assert [name for name in scripts if f"`{name}" not in told] == []
    assert all((ROOT / "bench" / name).is_file() for name in scripts)
