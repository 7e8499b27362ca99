"""The documents say what the code does."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from report_folder import make

from harness import errors
from harness.cli.app import COMMANDS, parser
from harness.core.typed_json import from_json, to_json
from harness.metrics.result import Result
from harness.records import names
from harness.run import options_from_args as plain

ROOT = Path(__file__).parents[1]
GENERATE = runpy.run_path(str(ROOT / "docs/generate.py"))
SCHEMA = json.loads((ROOT / "docs/result.schema.json").read_text())
PROSE = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_generated_equals_committed() -> None:
    """`make docs` was run after the last change of a table."""
    wanted = GENERATE["pages"]()
    assert {name: (ROOT / "docs" / name).read_text() for name in wanted} == wanted


def test_every_block_is_on_one_page() -> None:
    """And no page has a block without an end, which would never be filled."""
    texts = [page.read_text() for page in PROSE]
    assert sum(text.count("<!-- block: ") for text in texts) == len(GENERATE["BLOCKS"])
    named = [block[2] for text in texts for block in GENERATE["BLOCK"].finditer(text)]
    assert sorted(named) == sorted(GENERATE["BLOCKS"])


def test_every_state_of_a_result_is_documented() -> None:
    """With its meaning: a state without a comment beside it would be missing from the page."""
    states = {name: one["enum"] for name, one in SCHEMA["$defs"].items() if "enum" in one}
    page = (ROOT / "docs/result.md").read_text()
    told = {}
    for name, part in re.findall(r"### (\w+)\n(.*?)(?=\n#)", page, re.DOTALL):
        told[name] = re.findall(r"^\| (?:`(\w+)`|empty) \|", part, re.MULTILINE)
    assert {name: told[name] for name in states} == states


def misfits(result: Any) -> list[str]:
    """Paths of what the schema does not allow."""
    errors_found = Draft202012Validator(SCHEMA).iter_errors(result)
    return [error.json_path for error in errors_found]


def test_results_fit_the_schema(tmp_path: Path) -> None:
    """A run's with failures; and the sample's, to which fields may have been added since."""
    make(tmp_path / "run", seconds=2, levels=(1, 8, 32), fail_above=16)
    written = json.loads((tmp_path / "run" / names.RESULT).read_text())
    assert "inf" in {level["ttft_ms"]["p95"] for level in written["levels"]}
    sample = json.loads((ROOT / "reports/samples" / names.RESULT).read_text())
    again = to_json(from_json(Result, sample))
    assert misfits(written) == []
    assert misfits(again) == []
    assert misfits(written | {"status": "good"}) == ["$.status"]
    assert [key for key in sample if key not in SCHEMA["properties"]] == []


def test_exit_codes_are_documented() -> None:
    """docs/exit-codes.md has one row for each code that the code can end with."""
    codes = set()
    for name, value in vars(errors).items():
        if name.startswith("EXIT_"):
            codes.add(value)
        elif isinstance(value, type) and issubclass(value, errors.HarnessError):
            codes.add(value.exit_code)
    page = (ROOT / "docs/exit-codes.md").read_text()
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == codes


def test_readme_opens_with_what_it_does_and_the_two_commands() -> None:
    """Title, one paragraph, then `make knee` and `make test`."""
    _, first, commands, *_ = (ROOT / "README.md").read_text().split("\n\n")
    assert first.count(".") == 1
    without_comments = [line.split("#")[0].split() for line in commands.splitlines()]
    assert without_comments == [["make", "knee"], ["make", "test"]]


def test_readme_names_every_command() -> None:
    """The table of commands is whole."""
    readme = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| (`vllm-harness [^|]+) \|", readme, re.MULTILINE)
    named = [command for row in rows for command in re.findall(r"`(?:vllm-harness )?([\w-]+)", row)]
    assert set(named) == set(COMMANDS)


def test_documented_commands_parse() -> None:
    """Every indented `vllm-harness` line in the documents is one that the command accepts."""
    command = re.compile(r"^ {4}(?:\.venv/bin/)?vllm-harness ([^>#\n]*)", re.MULTILINE)
    refused = []
    for page in PROSE:
        for line in command.findall(page.read_text().replace("\\\n", " ")):
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
    for page in PROSE:
        for target in link.findall(page.read_text()):
            assert (page.parent / target).exists(), (page, target)


def test_the_benchmark_measures_the_page_too() -> None:
    """Each script that `make bench` starts is there, and bench/README.md says what it measures."""
    command = ["make", "-n", "bench"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    scripts = re.findall(r"bench/(\w+\.py)", shown.stdout)
    assert scripts == ["matrix.py", "live_page.py"]
    told = (ROOT / "bench/README.md").read_text()
    assert [name for name in scripts if f"`{name}" not in told] == []
    assert all((ROOT / "bench" / name).is_file() for name in scripts)
