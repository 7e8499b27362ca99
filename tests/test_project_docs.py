"""The documents say what the code does."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
from pathlib import Path

from jsonschema import Draft202012Validator
from report_folder import make

from harness import errors
from harness.cli.app import COMMANDS, parser
from harness.core.typed_json import from_json, to_json
from harness.metrics.result import Result
from harness.records import names
from harness.run import options_from_args as plain

ROOT = Path(__file__).parents[1]
PAGES = runpy.run_path(str(ROOT / "docs/generate.py"))["PAGES"]
SCHEMA = json.loads((ROOT / "docs/result.schema.json").read_text())
PROSE = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_generated_equals_committed() -> None:
    """`make docs` was run after the last change of a table."""
    wanted = {name: page() for name, page in PAGES.items()}
    assert {name: (ROOT / "docs" / name).read_text() for name in PAGES} == wanted


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
    kinds = [
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.HarnessError)
    ]
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
    names = set(COMMANDS)
    rows = re.findall(r"^\| `vllm-harness ([\w-]+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert set(rows) == names


def test_documented_commands_parse() -> None:
    """Every indented `vllm-harness` line in the documents is one that the command accepts."""
    command = re.compile(r"^ {4}(?:\.venv/bin/)?vllm-harness ([^>#\n]*)", re.MULTILINE)
    refused = []
    for page, line in [
        (path, line)
        for path in PROSE
        for line in command.findall(path.read_text().replace("\\\n", " "))
    ]:
        try:
            args = parser().parse_args(shlex.split(line))
            if "embedded" in args and not vars(args).get("prove"):  # which starts its server
                plain.target_options(args)
        except (SystemExit, errors.HarnessError) as error:
            refused.append(f"{page.relative_to(ROOT)}: {line}: {error}")
    assert refused == []


def test_links_lead_somewhere() -> None:
    """Relative links and pictures name files that exist."""
    link = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
    targets = [(path, target) for path in PROSE for target in link.findall(path.read_text())]
    assert [one for one in targets if not (one[0].parent / one[1]).exists()] == []


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
