"""The size of the KV cache, and what else of the front end's figures a /metrics page has or lacks.

Pages in, plain data for run.json out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
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
# Several API servers are the default of `vllm serve --data-parallel-size 2`.
TELL_LESS: Final = (
    "several API servers of vLLM's (--api-server-count) do not, nor does its front end in Rust "
    "(VLLM_USE_RUST_FRONTEND=1), nor do gateways"
)


def cache_config(text: bytes | str, model: str = "") -> list[dict[str, str]]:
    """Return each engine's labels of `vllm:cache_config_info`, without those that are None.

    Of a page of several models, those of `model` alone.
    """
    samples = parse_metrics(text, CACHE_CONFIG)
    if len(models_on(text)) > 1:
        samples = [sample for sample in samples if sample.labels.get("model_name") == model]
    engines: list[dict[str, str]] = []
    for sample in samples:
        labels = {name: value for name, value in sample.labels.items() if _is_given(name, value)}
        if labels not in engines:  # a gateway may write a line twice
            engines.append(labels)
    return sorted(engines, key=_engine_order)


def _is_given(name: str, value: str) -> bool:
    return value != "None" and not name.startswith("_")


def _engine_order(labels: Mapping[str, str]) -> tuple[int, str]:
    """By number, as vLLM names its engines; any other name comes first."""
    name = labels.get("engine", "")
    if name.isascii() and name.isdecimal():
        return int(name), name
    return -1, name


def models_on(text: bytes | str) -> list[str]:
    """The models that a page has lines of: a router's has several."""
    names = (_model(sample) for sample in parse_metrics(text, SERIES_NAMES))
    return sorted({name for name in names if name})


def _model(sample: MetricSample) -> str:
    if not sample.name.startswith(VLLM_PREFIXES):
        return ""
    return sample.labels.get("model_name", "")


def cache_summary(*replicas: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Sum up what `cache_config` returns, one of it for each replica; {}: unknown.

    `block_size` is in tokens; `kv_blocks` and `kv_tokens` are totals over all engines.
    """
    engines = list(chain.from_iterable(replicas))
    if not engines:
        return {}
    first = engines[0]
    blocks = [_blocks(replica) for replica in replicas]
    tokens = [_tokens(replica) for replica in replicas]
    return {
        "engines": len(engines),
        "block_size": whole_number(first.get("block_size")),
        "kv_blocks": _total(blocks),
        "kv_tokens": _total(tokens),
        "cache_config": dict(first),
    }


def _blocks(engines: Sequence[Mapping[str, str]]) -> int | None:
    """Of one replica. vLLM's front end adds up its engines and says the sum for each of them."""
    blocks = [whole_number(engine.get("num_gpu_blocks")) for engine in engines]
    all_same = len(set(blocks)) == 1
    return blocks[0] if all_same else _total(blocks)


def _tokens(engines: Sequence[Mapping[str, str]]) -> int | None:
    """Of one replica: as vLLM says since 0.26, for layers may share blocks; else of all blocks."""
    if not engines:
        return None
    # The front end says the first of several for each of them: they differ by a few blocks at most.
    tokens = whole_number(engines[0].get("kv_cache_size_tokens"))
    if tokens:
        return tokens * len(engines)
    blocks = _blocks(engines)
    block_size = whole_number(engines[0].get("block_size"))
    if blocks is None or block_size is None:
        return None
    return blocks * block_size


def _total(numbers: Sequence[int | None]) -> int | None:
    """The sum; None where there is no number, or one of them is unknown."""
    known = [number for number in numbers if number is not None]
    if not known or len(known) < len(numbers):
        return None
    return sum(known)


def whole_number(text: str | None) -> int | None:
    """Return a label's count; None where it is none."""
    if text is None or not text.isdecimal() or len(text) > MOST_DIGITS:
        return None
    return int(text)


def lacking(text: bytes | str, cache: Mapping[str, Any]) -> tuple[str, ...]:
    """What a page of vLLM's does not tell although others do, in sentences without a full stop."""
    names = {sample.name for sample in parse_metrics(text, PROCESS_FIGURES)}
    unknown = [words for name, words in PROCESS_FIGURES.items() if name not in names]
    sentences = []
    if not cache and len(models_on(text)) > 1:
        sentences.append(SEVERAL)
    elif not cache:
        unknown.insert(0, NO_CACHE_CONFIG)
    if unknown:
        sentences.append(f"the server's /metrics do not tell {', '.join(unknown)}: {TELL_LESS}")
    if cache and cache["kv_tokens"] is None:
        sentences.append(NO_BLOCKS)
    return tuple(sentences)
