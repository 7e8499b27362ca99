"""llm-d's Benchmark Report 0.2, of one level: a stage of the run.

Its figures have the definitions of inference-perf, the tool whose reports llm-d compares most.
llm-d reads any file `benchmark_report_v0.2,_*.yaml` of a results folder.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from harness import __version__
from harness.core.load import recorded_load
from harness.load.lengths import FROM_DATA
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.metrics.result import Result

    Json = dict[str, Any]

TOOL: Final = "inference-perf"
MS: Final = "ms"
MS_EACH: Final = "ms/token"
LATENCIES: Final = {  # theirs -> the tool's name and the unit
    "time_to_first_token": ("Time to First Token", MS),
    "time_per_output_token": ("Time per Output Token", MS_EACH),
    "normalized_time_per_output_token": ("Normalized Time per Output Token", MS_EACH),
    "inter_token_latency": ("Inter-token Latency", MS_EACH),
    "request_latency": ("Request Latency", MS),
}
STATISTICS: Final = {"std": "stddev", "p0.1": "p0p1", "p99.9": "p99p9"}  # where names differ
SHAPES: Final = {"fixed": "fixed", "uniform": "uniform"}  # of ours; theirs for all others: "other"


def llmd_report(result: Result, run_info: Json, place: int, own: Json) -> Json:
    """`place`: of the level in the result's `compat` entry."""
    level = (result.compat or {})[TOOL]["levels"][place]
    performance = {
        "requests": _requests(level),
        "latency": _latencies(level),
        "throughput": _throughput(level),
    }
    return {
        "version": "0.2",
        "run": _run(result, run_info, place, own),
        "scenario": {"stack": [_server(result)], "load": _load(result, run_info, place)},
        "results": {
            "request_performance": {"aggregate": performance},
            "observability": {"vllm_harness": own},  # free: the schema allows any key here
        },
    }


def _run(result: Result, run_info: Json, place: int, own: Json) -> Json:
    of_run = run_id(run_info)
    levels = own["levels"]
    seconds = sum(level["end_ns"] - level["settled_ns"] for level in levels) / SECOND
    description = f"vllm-harness {result.command}: {result.status}"
    if result.invalid_reason:
        description += f" ({result.invalid_reason})"
    return {
        "uid": f"{of_run}-{place}",
        "eid": of_run,
        "time": {
            "start": _instant(levels[0]["settled_ns"]),
            "end": _instant(levels[-1]["end_ns"]),
            "duration": f"PT{seconds:.3f}S",
        },
        "description": description,
        "keywords": ["vllm-harness", result.command],
    }


def run_id(run_info: Json) -> str:
    """The same for all levels of a run; folders of older versions have none but their start."""
    drive = run_info["config"]["drive"]
    return str(drive.get("run_id") or run_info["clock"]["realtime_ns"])


def _instant(ns: int) -> str:
    return datetime.fromtimestamp(ns / SECOND, UTC).isoformat(timespec="milliseconds")


def _server(result: Result) -> Json:
    """The target, as a component of no kind: their `inference_engine` needs its GPUs' numbers."""
    target = result.target
    flags = {str(key): str(value) for key, value in target.flags.items()}
    return {
        "metadata": {"label": "target", "cfg_id": target.url},
        "standardized": {
            "kind": "generic",
            "tool": "vllm-harness engine" if target.simulated else "vllm",
            "tool_version": str(target.versions.get("server") or "unknown"),
        },
        "native": {"args": flags, "config": {"model": target.model, "gpu": target.gpu}},
    }


def _load(result: Result, run_info: Json, place: int) -> Json:
    level = (result.compat or {})[TOOL]["levels"][place]
    drive = run_info["config"]["drive"]
    workload = drive["workload"]
    load = recorded_load(level["users"], level["rate_per_s"])
    from_data = workload["prompt"]["shape"] == FROM_DATA
    standardized: Json = {
        "tool": "vllm-harness",
        "tool_version": __version__,
        "parallelism": max(drive.get("processes") or 1, 1),
        "source": "sampled" if from_data else "random",
        "stage": place,
        "input_seq_len": _lengths(workload["prompt"]),
        "output_seq_len": _lengths(workload["output"]),
    }
    if load.by_schedule:
        standardized["rate_qps"] = load.rate_per_s
    else:
        standardized["concurrency"] = load.users
    if workload.get("conversation"):
        standardized["multi_turn"] = {"enabled": True}
    return {
        "metadata": {"cfg_id": run_id(run_info), "description": workload.get("title")},
        "standardized": standardized,
        "native": {"config": {"command": run_info.get("command"), "workload": workload}},
    }


def _lengths(drawn: Json) -> Json:
    """Of a workload's prompts or answers, in tokens."""
    mean = drawn["mean"]
    return {
        "distribution": SHAPES.get(drawn["shape"], "other"),
        "value": mean,
        "std_dev": mean * drawn.get("cv", 0.0),
    }


def _requests(level: Json) -> Json:
    totals = level["totals"]
    found: Json = {"total": level["requests"], "failures": totals["failed"]}
    if not totals["succeeded"]:
        return found
    for name, tokens in (("input_length", "prompt_tokens"), ("output_length", "output_tokens")):
        if totals[tokens] is not None:
            found[name] = {"units": "count", "mean": totals[tokens] / totals["succeeded"]}
    return found


def _latencies(level: Json) -> Json:
    """Without those of which no request has one: a statistic needs a mean."""
    found = {}
    for name, (title, unit) in LATENCIES.items():
        figures = level["figures"][title]
        if figures:
            renamed = {STATISTICS.get(key, key): value for key, value in figures.items()}
            found[name] = {"units": unit, **renamed}
    return found


def _throughput(level: Json) -> Json:
    rates = {row["name"]: row["theirs"] for row in level["rows"] if not row["statistic"]}
    output_rate = rates["Output Tokens per Second"]
    prompt_rate = level["totals"]["prompt_tokens_per_s"]
    all_known = output_rate is not None and prompt_rate is not None
    means = {
        "input_token_rate": (prompt_rate, "tokens/s"),
        "output_token_rate": (output_rate, "tokens/s"),
        "total_token_rate": (output_rate + prompt_rate if all_known else None, "tokens/s"),
        "request_rate": (rates["Requests per Second"], "queries/s"),
    }
    return {
        name: {"units": unit, "mean": mean}
        for name, (mean, unit) in means.items()
        if mean is not None
    }
