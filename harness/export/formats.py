"""`report --format`: a run's levels as files that other tools read, one for each level.

In: a result with its `compat` entries, and run.json; out: JSON objects. Each format has the figures
of one tool's definitions, as `--compat` shows them (decision 27): never ours under their names.
Ours, with their intervals, are in a field of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from harness import __version__
from harness.core.load import recorded_load
from harness.core.typed_json import to_json
from harness.export.llmd_report import llmd_report
from harness.export.vllm_bench import vllm_bench_result
from harness.metrics.metrics import SLO_METRICS
from harness.records.json_files import dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from harness.core.load import Load
    from harness.metrics.result import Level, Result

    Json = dict[str, Any]

OWN_RATES: Final = ("output_tokens_per_s", "requests_per_s", "goodput_per_s")


class Format(NamedTuple):
    """One row of FORMATS."""

    tool: str  # of COMPAT: whose definitions the figures have
    file_name: str  # as the other side looks for it; {load}: `4-users`
    build: Callable[[Result, Json, int, Json], Json]  # result, run.json, place of the level, own


FORMATS: Final = {
    "vllm-bench": Format("vllm-bench", "vllm-bench-{load}.json", vllm_bench_result),
    "llm-d": Format(
        "inference-perf", "benchmark_report_v0.2,_vllm-harness-{load}.yaml", llmd_report
    ),
}


def write_formats(folder: Path, names: Sequence[str], result: Result, run_info: Json) -> list[Path]:
    """Write a file for each format and level into the run folder; their paths."""
    written = []
    for name in names:
        form = FORMATS[name]
        for place, level in enumerate(_compared_levels(result, form.tool)):
            load = recorded_load(level["users"], level["rate_per_s"])
            document = form.build(result, run_info, place, own_figures(result, load))
            path = folder / form.file_name.format(load=_load_text(load))
            path.write_bytes(dumps(document, indent=True) + b"\n")  # JSON is YAML, too
            written.append(path)
    return written


def own_figures(result: Result, load: Load) -> Json:
    """Our figures of the levels at one load, with their intervals, and the knee if any."""
    held = [level for level in result.levels if level.load == load.number]
    usable = [level for level in held if level.usable]
    return {
        "version": __version__,
        "command": result.command,
        "status": result.status,
        "invalid_reason": result.invalid_reason,
        "unit": result.unit,
        "load": load.number,
        "levels": [_own_level(level) for level in usable or held],
        "knee": to_json(result.knee),
    }


def _own_level(level: Level) -> Json:
    figures = to_json(level)
    names = (
        "index",
        "settled_ns",
        "end_ns",
        *(metric.field for metric in SLO_METRICS.values()),
        *OWN_RATES,
    )
    return {name: figures[name] for name in names}


def _compared_levels(result: Result, tool: str) -> list[Json]:
    entry = (result.compat or {})[tool]
    levels: list[Json] = entry["levels"]
    return levels


def _load_text(load: Load) -> str:
    """`4-users`, `2.5-per-s`: part of a file's name."""
    return f"{load.number:g}-per-s" if load.by_schedule else f"{load.number}-users"
