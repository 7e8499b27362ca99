"""The public names, their page, and packages that add to them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from study_process import check_code

from harness import ConfigError
from harness.extend import Observations, RecordTable, e2e, latency, ttft
from harness.metrics.metrics import METRICS, SLO_METRICS, LatencyMetric
from harness.metrics.own_latencies import check_latency
from harness.reader.open_stream import Exchange
from harness.senders.users import LlmClient, StreamingUser

if TYPE_CHECKING:
    from collections.abc import Callable

TOP = Path(__file__).parents[1]
PAGE = (TOP / "docs/api.md").read_text()
PUBLIC = {
    "harness": {
        "ConfigError", "HarnessError", "RunFolderError", "RunFrames", "__version__", "open_run",
    },
    "harness.locust": {"ChatUser", "CompletionsUser", "Pacer", "StreamingUser", "WorkloadUser"},
    "harness.extend": {
        "Conversation", "Lengths", "Observations", "RecordTable", "Workload", "e2e", "latency",
        "tpot", "ttfot", "ttft",
    },
}  # fmt: skip
# Of a reply: what it is made of.
LEFT_OUT = {"sent_ns", "first_reads", "last_bytes", "counted_past_python", "e2e_ns"}


def section(module: str) -> str:
    """A module's part of the page."""
    _, _, part = PAGE.partition(f"\n## {module}\n")
    return part.partition("\n## ")[0]


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names(module: str) -> None:
    """These and no others; the page has a row for each, and `import` finds it."""
    assert set(importlib.import_module(module).__all__) == PUBLIC[module]
    rows = re.findall(r"^\| (`.*?) \|", section(module), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)", row)}
    assert PUBLIC[module] - named == set()
    if module != "harness.locust":  # whose import changes Locust
        here = importlib.import_module(module)
        assert [name for name in PUBLIC[module] if getattr(here, name, None) is None] == []


def parameters(callable_: Callable[..., Any]) -> list[str]:
    """Their names, without `self`."""
    return [name for name in inspect.signature(callable_).parameters if name != "self"]


def test_every_parameter_is_on_the_page() -> None:
    """Of functions, of the classes that users make, and what a reply has."""
    extend = importlib.import_module("harness.extend")
    wanted = {"harness.locust": [*parameters(StreamingUser.send), *parameters(LlmClient.send)]}
    classes = (extend.Workload, extend.Lengths, extend.Conversation, Observations)
    wanted["harness.extend"] = parameters(latency)
    for one in classes:
        wanted["harness.extend"] += [field.name for field in dataclasses.fields(one)]
    replied = [field.name for field in dataclasses.fields(Exchange)]
    replied += [name for name, _ in inspect.getmembers(Exchange, lambda m: isinstance(m, property))]
    wanted["harness.locust"] += [name for name in replied if name not in LEFT_OUT]
    lacking = {
        module: [name for name in names if not re.search(rf"\b{name}\b", section(module))]
        for module, names in wanted.items()
    }
    assert lacking == {"harness.locust": [], "harness.extend": []}


def tenth(table: RecordTable) -> Observations:
    """To the tenth event, which tables do not keep."""
    seen = ttft(table)
    at_ns = np.append(table.at_ns, 0)
    has_ten = table.counts > 9
    tenth_ns = at_ns[np.where(has_ten, table.offsets[:-1] + 9, 0)] - table.begun_ns
    ns = np.where(has_ten & np.isfinite(seen.ns), tenth_ns, seen.ns).clip(min=0)
    return dataclasses.replace(seen, ns=ns, lo_ns=ns, hi_ns=np.maximum(ns, seen.hi_ns))


def only_good(table: RecordTable) -> Observations:
    """Without the requests that failed."""
    seen = e2e(table)
    good = np.isfinite(seen.ns)
    columns = {f.name: getattr(seen, f.name)[good] for f in dataclasses.fields(seen)}
    return Observations(**columns)


def negative(table: RecordTable) -> Observations:
    """A value below its lower bound."""
    seen = e2e(table)
    return dataclasses.replace(seen, ns=seen.ns - 1e12)


def twice(table: RecordTable) -> Observations:
    """Two observations of each request."""
    seen = e2e(table)
    columns = {f.name: np.tile(getattr(seen, f.name), 2) for f in dataclasses.fields(seen)}
    return Observations(**columns)


def needs_one(table: RecordTable) -> Observations:
    """An index that an empty table does not have."""
    assert table.sent_ns[0] > 0
    return e2e(table)


REFUSED: dict[Callable[[RecordTable], Any], str] = {
    tenth: "mine is different where a request keeps three events",
    only_good: "mine has a finite value, or none, for a request that failed",
    negative: "mine has values that are below 0, unknown, or outside of their bounds",
    twice: "mine has a request twice",
    needs_one: "mine fails for 0 requests (IndexError",
    lambda _: 3: "mine fails for 120 requests (AttributeError",
}


@pytest.mark.parametrize(("observe", "said"), REFUSED.items())
def test_a_latency_that_cannot_be_kept(observe: Callable[[RecordTable], Any], said: str) -> None:
    """One sentence says which rule it breaks, and what to try."""
    with pytest.raises(ConfigError) as refused:
        check_latency(observe, "mine")
    assert str(refused.value).startswith(said)
    assert "expected" in str(refused.value)


PER_REQUEST = [metric for metric in SLO_METRICS.values() if metric.gaps is None]


@pytest.mark.parametrize("metric", PER_REQUEST, ids=lambda metric: metric.key)
def test_our_own_latencies_keep_the_rules(metric: LatencyMetric) -> None:
    """A row of METRICS that tables cannot keep is refused here, with the same sentence."""
    check_latency(metric.observe, metric.key)


def command(packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`vllm-harness` where these packages are installed."""
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        env=os.environ | {"PYTHONPATH": f"{packages}:{TOP}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


BAD = """
from harness.extend import latency, ttft
WORDS = "no workload"
TTFT = latency("ttft", "TTFT", "Mine", "Mine.", ttft)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("group", "line", "said"),
    [
        ("workloads", "mine = bad:WORDS", "(package bad 1) is str: expected a harness.extend.Work"),
        ("workloads", "mine = gone:X", "cannot be imported (ModuleNotFoundError: No module named"),
        ("metrics", "mine = bad:WORDS", "(package bad 1) is str: expected a latency of requests"),
        ("metrics", "ttft = bad:TTFT", "has the key 'ttft': expected the entry point's name"),
    ],
)
def test_a_package_that_is_refused(group: str, line: str, said: str, tmp_path: Path) -> None:
    """By its entry point and its package, in a sentence, before any load."""
    about = tmp_path / "bad-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[vllm_harness.{group}]\n{line}\n")
    (tmp_path / "bad.py").write_text(BAD)
    asked = ["--workload", "mine"] if group == "workloads" else ["--slo", "ttft_p95=1s"]
    done = command(tmp_path, "run", "--embedded", "--users", "2", *asked, "--dry-run")
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both packages of examples/, installed into a folder."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(TOP / "examples", folder / "source")
    target = folder / "installed"
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps"]
    sources = [str(folder / "source" / name) for name in ("workload", "metric")]
    installed = subprocess.run(
        [*uv, "--target", str(target), *sources], capture_output=True, text=True, check=False
    )
    if installed.returncode and os.environ.get("HARNESS_CI") != "1":
        pytest.skip(f"the packages cannot be built here: {installed.stderr[:200]}")
    assert installed.returncode == 0, installed.stderr
    return target


@pytest.mark.process
def test_the_examples_run(examples: Path, tmp_path: Path) -> None:
    """One command with both: the workload's sessions are sent, the SLO is judged and reported."""
    assert "normalized" not in METRICS
    asked = "--workload support --think-time 300ms --output-tokens 8 --slo normalized_p50=5s"
    load = f"--embedded --users 2 --duration 3s --out {tmp_path / 'run'} --json -"
    done = command(examples, "run", *asked.split(), *load.split())
    check_code(done.returncode, done.stderr, 0)
    result = json.loads(done.stdout)
    (level,) = result["levels"]
    assert result["unit"] == "session"
    assert level["normalized_ms"]["n"] > 0
    assert [slo["slo"] for slo in result["slos"]] == ["normalized_p50=5s"]
    assert "p95 Normalized, ms" in (tmp_path / "run" / "report.md").read_text()
    # where its package is not installed, the folder is refused by the SLO that names it
    without = command(tmp_path, "report", str(tmp_path / "run"))
    assert without.returncode == 2
    assert "normalized_p50=5s" in without.stderr
