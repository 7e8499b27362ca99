"""`report --format`: files that others read, by their schema, with the figures of `--compat`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from measure_tables import MS, record, table
from report_folder import make
from study_process import load

from harness.cli.app import main
from harness.compat.tool_comparison import ToolComparison
from harness.core.load import Rate, Users
from harness.errors import EXIT_INCONCLUSIVE
from harness.export import FORMAT_NAMES
from harness.export.formats import FORMATS, write_formats
from harness.metrics.evidence import Window
from harness.metrics.result import Level, Result, Target
from harness.metrics.scan import scan
from harness.records.request_record import Outcome

if TYPE_CHECKING:
    from harness.core.load import Load

Json = dict[str, Any]

# one worker makes what they look at
pytestmark = pytest.mark.xdist_group("formats")
SCHEMA = Path(__file__).parent / "data/formats/benchmark_report_v0_2.schema.json"
LLMD_FILE = "benchmark_report_v0.2,_vllm-harness-{}.yaml"
HELD = (4, 8, 50, 50)
STATISTICS = ("mean", "p50", "p95", "p99")
LLMD_NAMES = {
    "time_to_first_token": "Time to First Token",
    "time_per_output_token": "Time per Output Token",
    "normalized_time_per_output_token": "Normalized Time per Output Token",
    "inter_token_latency": "Inter-token Latency",
    "request_latency": "Request Latency",
}
BENCH_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
BENCH_STATISTICS = {"mean": "mean", "median": "p50", "p95": "p95", "p99": "p99"}
# What vLLM 0.32's `vllm bench serve --save-result` writes of text, by its source.
BENCH_TYPES: dict[str, tuple[type, ...]] = {
    "date": (str,), "endpoint_type": (str,), "backend": (str,), "label": (str,),
    "model_id": (str,), "tokenizer_id": (str,), "num_prompts": (int,),
    "request_rate": (float, str), "burstiness": (float,), "max_concurrency": (int, type(None)),
    "duration": (float,), "completed": (int,), "failed": (int,), "total_input_tokens": (int,),
    "total_output_tokens": (int,), "request_throughput": (float,),
    "request_goodput": (float, type(None)), "output_throughput": (float,),
    "total_token_throughput": (float,),
    **{f"{statistic}_{name}_ms": (float, int)
       for name in BENCH_NAMES for statistic in ("mean", "median", "std", "p99")},
}  # fmt: skip
WELL = replace(
    record(0, 10, [110, 130, 190], done=205, tokens=[1, 1, 2]), output_tokens=4, prompt_tokens=30
)
FAILED = record(1, 500, [600], done=900, outcome=Outcome.truncated, planned=4)
RUN_INFO: Json = {
    "command": ["vllm-harness", "run"],
    "clock": {"realtime_ns": 1},
    "config": {
        "drive": {
            "run_id": "1f",
            "processes": 2,
            "workload": {
                "title": "short",
                "api": "completions",
                "prompt": {"shape": "fixed", "mean": 30, "cv": 0.0},
                "output": {"shape": "lognormal", "mean": 4, "cv": 0.5},
            },
        }
    },
}


def result_of(*records: object, at: Load) -> Result:
    """Of one level of a second, with every tool's figures."""
    whole = table(*records)
    window = Window(0, at, "hold", 0, 0, 0, 1000 * MS, 1000 * MS)
    comparison = ToolComparison(whole, [(0, 1000 * MS)])
    scan(whole, comparison.visitors)
    level = Level(0, at.users, rate_per_s=at.rate_per_s, end_ns=1000 * MS)
    tools = {form.tool for form in FORMATS.values()}
    return Result(
        command="run",
        unit="request/s" if at.by_schedule else "concurrent request",
        target=Target(url="http://127.0.0.1:8000", model="m"),
        levels=(level,),
        compat={tool: comparison.entry(tool, [window]) for tool in tools},
    )


def read(path: Path) -> Json:
    """As llm-d reads its reports, and vLLM's results."""
    document: Json = yaml.safe_load(path.read_text())
    return document


def written(folder: Path, name: str, result: Result) -> Json:
    """The only file of a format."""
    (path,) = write_formats(folder, [name], result, RUN_INFO)
    return read(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search whose levels were written in every format."""
    path = tmp_path_factory.mktemp("formats") / "run"
    make(path, seconds=2, levels=HELD)
    options = [part for name in FORMAT_NAMES for part in ("--format", name)]
    assert main(["report", str(path), *options]) == EXIT_INCONCLUSIVE  # too short to find a knee
    return path


def test_the_names_are_those_of_the_table() -> None:
    """`--help` knows them without importing the formats."""
    assert tuple(FORMATS) == FORMAT_NAMES


def test_reports_for_llmd_meet_its_schema(folder: Path) -> None:
    """One for each level, by llm-d's own schema."""
    validator = Draft202012Validator(read(SCHEMA))
    paths = sorted(folder.glob("benchmark_report_v0.2,_*.yaml"))
    levels = load(folder / "result.json")["compat"]["inference-perf"]["levels"]
    assert len(paths) == len(levels) == len(set(HELD))
    for path in paths:
        assert [error.message for error in validator.iter_errors(read(path))] == []


def test_the_schema_refuses_what_is_wrong(folder: Path) -> None:
    """So it looks at what is tested here."""
    report = read(folder / LLMD_FILE.format("50-users"))
    report["results"]["request_performance"]["aggregate"]["latency"]["ttft"] = {"mean": 1}
    assert not Draft202012Validator(read(SCHEMA)).is_valid(report)


def test_figures_for_llmd_are_those_of_compat(folder: Path) -> None:
    """Each statistic that both have, of each latency and rate of a level."""
    aggregate = read(folder / LLMD_FILE.format("50-users"))["results"]["request_performance"][
        "aggregate"
    ]
    got = {
        (title, statistic): aggregate["latency"][name][statistic]
        for name, title in LLMD_NAMES.items()
        for statistic in STATISTICS
    }
    rate = aggregate["throughput"]
    got["Output Tokens per Second", ""] = rate["output_token_rate"]["mean"]
    got["Requests per Second", ""] = rate["request_rate"]["mean"]
    assert got == compat_figures(folder, "inference-perf", 50)


def test_figures_for_vllm_bench_are_those_of_compat(folder: Path) -> None:
    """The same, by the names of vLLM's file."""
    saved = load(folder / "vllm-bench-50-users.json")
    got = {
        (title, theirs): saved[f"{statistic}_{name}_ms"]
        for name, title in BENCH_NAMES.items()
        for statistic, theirs in BENCH_STATISTICS.items()
    }
    got["Output token throughput", ""] = saved["output_throughput"]
    got["Request throughput", ""] = saved["request_throughput"]
    assert got == compat_figures(folder, "vllm-bench", 50)


def compat_figures(folder: Path, tool: str, users: int) -> Json:
    """Theirs in result.json, by name and statistic."""
    levels = load(folder / "result.json")["compat"][tool]["levels"]
    (level,) = (level for level in levels if level["users"] == users)
    return {(row["name"], row["statistic"]): row["theirs"] for row in level["rows"]}


def test_our_intervals_go_where_there_is_room(folder: Path) -> None:
    """In a field of our own, for each hold of the level, with the knee."""
    result = load(folder / "result.json")
    want = [level["ttft_ms"] for level in result["levels"] if level["users"] == 50]
    report = read(folder / LLMD_FILE.format("50-users"))
    saved = load(folder / "vllm-bench-50-users.json")
    for own in (report["results"]["observability"]["vllm_harness"], saved["vllm_harness"]):
        assert [level["ttft_ms"] for level in own["levels"]] == want
        assert own["knee"] == result["knee"]
    assert len(want) > 1
    assert want[0]["p95_ci95"][0] > 0


def test_a_file_for_vllm_bench_has_the_types_of_the_tool(tmp_path: Path) -> None:
    """Of a request that ended well and one that failed, in a second at two users."""
    saved = written(tmp_path, "vllm-bench", result_of(WELL, FAILED, at=Users(2)))
    for name, types in BENCH_TYPES.items():
        assert isinstance(saved[name], types), name
    want = {
        "date": "19700101-000000",
        "backend": "openai",
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 2,
        "num_prompts": 2,
        "completed": 1,
        "failed": 1,
        "duration": 1.0,
        "total_input_tokens": 30,
        "total_output_tokens": 4,
        "total_token_throughput": 34.0,
        "p0.1_ttft_ms": 100.0,
        "std_ttft_ms": 0.0,
    }
    assert {name: saved[name] for name in want} == want


def test_a_report_for_llmd_says_what_was_sent(tmp_path: Path) -> None:
    """An open loop: a rate and no concurrency; lengths as drawn."""
    report = written(tmp_path, "llm-d", result_of(WELL, FAILED, at=Rate(2.5)))
    assert (tmp_path / LLMD_FILE.format("2.5-per-s")).exists()
    load_said = report["scenario"]["load"]["standardized"]
    want = {
        "parallelism": 2,
        "rate_qps": 2.5,
        "input_seq_len": {"distribution": "fixed", "value": 30, "std_dev": 0.0},
        "output_seq_len": {"distribution": "other", "value": 4, "std_dev": 2.0},
    }
    assert {name: load_said.get(name) for name in want} == want
    assert "concurrency" not in load_said
    requests = report["results"]["request_performance"]["aggregate"]["requests"]
    assert (requests["total"], requests["failures"]) == (2, 1)
    assert requests["input_length"] == {"units": "count", "mean": 30.0}


def test_a_level_without_an_answer_has_no_latencies(tmp_path: Path) -> None:
    """All requests failed: the report has counts only, and is still one by the schema."""
    report = written(tmp_path, "llm-d", result_of(FAILED, at=Users(1)))
    aggregate = report["results"]["request_performance"]["aggregate"]
    assert aggregate["latency"] == {}
    assert aggregate["requests"] == {"total": 1, "failures": 1}
    assert Draft202012Validator(read(SCHEMA)).is_valid(report)
    saved = written(tmp_path, "vllm-bench", result_of(FAILED, at=Users(1)))
    assert (saved["completed"], saved["mean_ttft_ms"]) == (0, None)


def test_another_slo_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--slo reads the folder only."""
    command = ["report", str(folder), "--format", "llm-d", "--slo", "ttft_p95=300ms"]
    assert main(command) == 2
    assert "expected one of them" in capsys.readouterr().err
