"""The size of the KV cache, and what else of the front end's figures a /metrics page has or lacks.

Pages in, plain data for run.json out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from harness.wire.prometheus_text import MetricSample, parse_metrics
from harness.wire.vllm_series import CACHE_CONFIG, SERIES_NAMES, VLLM_PREFIXES

# What the API server tells of itself, by one of its series, and what is unknown without it.
PROCESS_FIGURES: Final = {
    "process_start_time_seconds": "when it started (a restart shows only in falling counters)",
    "process_cpu_seconds_total": "the CPU time of its front end (known only on this machine)",
}
NO_CACHE_CONFIG: Final = "the size of its KV cache (no vllm:cache_config_info)"
NO_BLOCKS: Final = (
    "the server does not tell how many blocks its KV cache has (num_gpu_blocks), as vLLM 0.11 to "
    "0.18 with several API servers (--api-server-count): its size is unknown here; vLLM's log has "
    "it (KV cache size)"
)
SEVERAL: Final = (
    "the size of the KV cache is unknown: the page has several models, and vLLM's line of the "
    "cache names none"
)
MOST_DIGITS: Final = 18  # of a count: any other is none
RUST: Final = "vLLM's front end in Rust (VLLM_USE_RUST_FRONTEND=1) does not, nor do gateways"


def cache_config(text: bytes | str, model: str = "") -> list[dict[str, str]]:
    """Return each engine's labels of `vllm:cache_config_info`, without those that are None.

    Of a page of several models, those of `model` alone.
    """
    found = parse_metrics(text, CACHE_CONFIG)
    if len(models_on(text)) > 1:
        found = [sample for sample in found if sample.labels.get("model_name") == model]
    engines: list[dict[str, str]] = []
    for sample in found:
        labels = {k: v for k, v in sample.labels.items() if v != "None" and k[:1] != "_"}
        if labels not in engines:  # a gateway may write a line twice
            engines.append(labels)

    def order(labels: dict[str, str]) -> tuple[int, str]:
        """By number, as vLLM names its engines; any other name comes first."""
        name = labels.get("engine", "")
        return int(name) if name.isascii() and name.isdecimal() else -1, name

    return sorted(engines, key=order)


def models_on(text: bytes | str) -> list[str]:
    """The models that a page has lines of: a router's has several."""
    names = (_model(sample) for sample in parse_metrics(text, SERIES_NAMES))
    return sorted({name for name in names if name})


def _model(sample: MetricSample) -> str:
    return sample.labels.get("model_name", "") if sample.name.startswith(VLLM_PREFIXES) else ""


def cache_summary(*replicas: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Sum up what `cache_config` returns, one of it for each replica; {}: unknown.

    `block_size` is in tokens; `kv_blocks` and `kv_tokens` are totals over all engines.
    """
    engines = [engine for replica in replicas for engine in replica]
    if not engines:
        return {}
    return {
        "engines": len(engines),
        "block_size": whole_number(engines[0].get("block_size")),
        "kv_blocks": _total([_blocks(replica) for replica in replicas]),
        "kv_tokens": _total([_tokens(replica) for replica in replicas]),
        "cache_config": dict(engines[0]),
    }


def _blocks(engines: Sequence[Mapping[str, str]]) -> int | None:
    """Of one replica. vLLM's front end adds up its engines and says the sum for each of them."""
    blocks = [whole_number(engine.get("num_gpu_blocks")) for engine in engines]
    same = len(set(blocks)) == 1
    return blocks[0] if same else _total(blocks)


def _tokens(engines: Sequence[Mapping[str, str]]) -> int | None:
    """Of one replica: as vLLM says since 0.26, for layers may share blocks; else of all blocks."""
    if len(engines) == 1 and (said := whole_number(engines[0].get("kv_cache_size_tokens"))):
        return said
    blocks = _blocks(engines)
    size = whole_number(engines[0].get("block_size")) if engines else None
    return blocks * size if blocks is not None and size is not None else None


def _total(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None


def whole_number(text: str | None) -> int | None:
    """Return a label's count; None where it is none."""
    if text is None or not text.isdecimal() or len(text) > MOST_DIGITS:
        return None
    return int(text)


def lacking(text: bytes | str, cache: Mapping[str, Any]) -> tuple[str, ...]:
    """What a page of vLLM's does not tell although others do, in sentences without a full stop."""
    there = {sample.name for sample in parse_metrics(text, PROCESS_FIGURES)}
    unknown = [words for name, words in PROCESS_FIGURES.items() if name not in there]
    said = []
    if not cache and len(models_on(text)) > 1:
        said.append(SEVERAL)
    elif not cache:
        unknown.insert(0, NO_CACHE_CONFIG)
    if unknown:
        said.append(f"the server's /metrics do not tell {', '.join(unknown)}: {RUST}")
    if cache and cache["kv_tokens"] is None:
        said.append(NO_BLOCKS)
    return tuple(said)
