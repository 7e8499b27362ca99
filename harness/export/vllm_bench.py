"""The result file of `vllm bench serve --save-result`, of one level.

Its readers are `vllm bench sweep`, vLLM's dashboards and llm-d-benchmark. Percentiles are those of
`--metric-percentiles 0.1,1,5,...`. Not in it: `max_output_tokens_per_s` and
`max_concurrent_requests`, peaks within a second of the tool's own clock, and `rtfx`, of audio.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from harness.core.load import recorded_load
from harness.load.arrivals import POISSON
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.metrics.result import Result

    Json = dict[str, Any]

BACKENDS: Final = {"chat": "openai-chat", "completions": "openai"}  # by our name of an API
NAMES: Final = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2EL": "e2el"}
NO_LIMIT: Final = "inf"  # what the tool writes of a rate that it was not given


def vllm_bench_result(result: Result, run_info: Json, place: int, own: Json) -> Json:
    """`place`: of the level in the result's `compat` entry."""
    level = (result.compat or {})["vllm-bench"]["levels"][place]
    drive = run_info["config"]["drive"]
    api = drive["workload"].get("api") or "chat"
    backend = BACKENDS.get(api, api)
    load = recorded_load(level["users"], level["rate_per_s"])
    totals = level["totals"]
    head = {
        "date": _date(own),
        "endpoint_type": backend,
        "backend": backend,
        "label": "vllm-harness",
        "model_id": result.target.model,
        "tokenizer_id": result.target.model,
        "num_prompts": level["requests"],
        "request_rate": load.rate_per_s or NO_LIMIT,
        "burstiness": _burstiness(drive.get("arrivals") or POISSON),
        "max_concurrency": load.users or None,
        "duration": totals["seconds"],
        "completed": totals["succeeded"],
        "failed": totals["failed"],
        "total_input_tokens": totals["prompt_tokens"],
        "total_output_tokens": totals["output_tokens"],
        "request_goodput": None,  # the tool's, too, without --goodput
    }
    return head | _throughput(level) | _latencies(level) | {"vllm_harness": own}


def _date(own: Json) -> str:
    """When the measured window began, as the tool writes it."""
    started = datetime.fromtimestamp(own["levels"][0]["settled_ns"] / SECOND, UTC)
    return started.strftime("%Y%m%d-%H%M%S")


def _burstiness(arrivals: str) -> float | None:
    """The shape of its gamma distribution: 1 is Poisson; the tool has no other of our kinds."""
    return 1.0 if arrivals == POISSON else None


def _throughput(level: Json) -> Json:
    rates = {row["name"]: row["theirs"] for row in level["rows"] if not row["statistic"]}
    output_rate = rates["Output token throughput"]
    prompt_rate = level["totals"]["prompt_tokens_per_s"]
    all_known = output_rate is not None and prompt_rate is not None
    return {
        "request_throughput": rates["Request throughput"],
        "output_throughput": output_rate,
        "total_token_throughput": output_rate + prompt_rate if all_known else None,
    }


def _latencies(level: Json) -> Json:
    found: Json = {}
    for title, name in NAMES.items():
        figures_ms = dict(level["figures"][title])
        found[f"mean_{name}_ms"] = figures_ms.pop("mean", None)
        found[f"median_{name}_ms"] = figures_ms.get("p50")
        found[f"std_{name}_ms"] = figures_ms.pop("std", None)
        for percentile, value_ms in figures_ms.items():
            if percentile.startswith("p"):
                found[f"{percentile}_{name}_ms"] = value_ms
    return found
