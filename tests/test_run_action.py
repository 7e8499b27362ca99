"""action.yml, as a runner executes it: its own shell steps, against the embedded engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree as ET

import pytest
import yaml
from study_process import check_code

if TYPE_CHECKING:
    from collections.abc import Iterator

TOP = Path(__file__).parents[1]
ACTION: dict[str, Any] = yaml.safe_load((TOP / "action.yml").read_text())
SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail")  # what a runner calls `bash`
SHORT = "--users 2 --duration 3s --output-tokens 8 --processes 1"
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """An embedded engine: first tokens take 20 ms, others 2 ms."""
    line = "-m harness engine --port 0 --first 20ms --pace 2ms"
    with subprocess.Popen(
        [sys.executable, *line.split()], stdout=subprocess.PIPE, text=True
    ) as engine:
        assert engine.stdout is not None
        found = re.search(r"http://\S+?:\d+", engine.stdout.readline())
        assert found is not None
        yield found[0]
        engine.terminate()


class Job(NamedTuple):
    """What a runner has after the action."""

    code: int  # of the last step that ran
    outputs: dict[str, str]  # of the action
    summary: str
    log: str


class Runner:
    """A runner's files and variables."""

    def __init__(self, temp: Path) -> None:
        self.output = temp / "outputs"
        self.summary = temp / "summary.md"
        for file in (self.output, self.summary):
            file.touch()
        here = str(Path(sys.executable).parent)
        self.environment = os.environ | {
            "PATH": f"{here}:{os.environ['PATH']}",  # vllm-harness is installed there
            "PYTHONPATH": str(TOP),
            "RUNNER_TEMP": str(temp),
            "GITHUB_ACTION_PATH": str(TOP),
            "GITHUB_OUTPUT": str(self.output),
            "GITHUB_STEP_SUMMARY": str(self.summary),
        }

    def job(self, **given: str) -> Job:
        """All steps with a shell in turn, until one fails."""
        inputs = {
            name: given.get(name, one.get("default")) for name, one in ACTION["inputs"].items()
        }
        steps = [step for step in ACTION["runs"]["steps"] if "run" in step]
        log = ""
        code = 0
        for step in steps:
            variables = {
                name: self.expanded(value, inputs) for name, value in step.get("env", {}).items()
            }
            done = subprocess.run(
                [*SHELL, "-c", step["run"]],
                env=self.environment | variables,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            log += done.stdout + done.stderr
            code = done.returncode
            if code:
                break
        outputs = {
            name: self.expanded(one["value"], inputs) for name, one in ACTION["outputs"].items()
        }
        return Job(code, outputs, self.summary.read_text(), log)

    def expanded(self, text: str, inputs: dict[str, str]) -> str:
        """Expressions filled in: inputs and the outputs of the step `measure` are all there are."""
        told = dict(line.split("=", 1) for line in self.output.read_text().splitlines())
        known = {f"inputs.{name}": value for name, value in inputs.items()}
        known |= {f"steps.measure.outputs.{name}": value for name, value in told.items()}
        return re.sub(r"\$\{\{ (\S+) \}\}", lambda found: known[found[1]], text)


def test_every_step_is_read() -> None:
    """No input is pasted into a script, and what is used is pinned by its commit."""
    steps = ACTION["runs"]["steps"]
    scripts = [step["run"] for step in steps if "run" in step]
    assert [script for script in scripts if "${{" in script] == []
    used = [step["uses"] for step in steps if "uses" in step]
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", one) for one in used)
    assert len(scripts) + len(used) == len(steps)
    assert all(step["shell"] == "bash" for step in steps if "run" in step)


@pytest.mark.parametrize(("limit", "code"), [("30s", 0), ("1us", 99)])
def test_the_exit_code_is_kept(url: str, limit: str, code: int, tmp_path: Path) -> None:
    """That of the command, with the report as summary, JUnit, and the run folder."""
    job = Runner(tmp_path).job(
        command="run", url=url, slo=f"ttft_p50={limit}\ne2e_p50=30s\n", options=SHORT
    )
    check_code(job.code, job.log, code)
    assert job.outputs["exit-code"] == str(job.code)
    folder = Path(job.outputs["folder"])
    result = json.loads((folder / "run" / "result.json").read_text())
    assert result["exit_code"] == job.code
    assert job.summary == (folder / "run" / "report.md").read_text()
    suite = ET.parse(folder / "junit.xml").getroot()  # noqa: S314 - our own
    names = [case.get("name") for case in suite.iter("testcase")]
    assert names[:2] == [f"ttft_p50={limit}", "e2e_p50=30s"]
    assert (int(suite.get("failures", 0)) > 0) is (job.code == 99)


def test_a_refusal_is_the_summary(tmp_path: Path) -> None:
    """Nobody answers: no report, but the sentence is on the job's page, and the code is 3."""
    job = Runner(tmp_path).job(command="run", url="http://127.0.0.1:1", options=SHORT)
    assert job.code == 3
    assert job.outputs["exit-code"] == "3"
    assert "http://127.0.0.1:1" in job.summary
    assert "expected a vLLM server" in job.summary
