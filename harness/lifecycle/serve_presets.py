"""PRESETS: flags of vLLM that suit a kind of service, for `serve --preset`."""

from __future__ import annotations

from typing import Final

from harness.errors import ConfigError

DISAGGREGATED: Final = "disaggregated"
NIXL: Final = "NixlConnector"  # its package is not among those of vLLM
# name -> flag, value, why. The figures are of one H200 and a 1.5B model: docs/h200.md.
PRESETS: Final[dict[str, tuple[tuple[str, str, str], ...]]] = {
    "interactive": (
        ("--max-num-batched-tokens", "2048", "short steps: at 64 users p95 ITL was 25 ms, not 88"),
        ("--max-num-seqs", "128", "a smaller batch takes less time per step"),
        ("--enable-chunked-prefill", "", "what steps this short need: p99 ITL 32 ms, not 38"),
        ("--enable-prefix-caching", "", "with 84% shared, a first token came in 20 ms, not 34"),
        ("--max-model-len", "16384", "room for a long conversation"),
        ("--gpu-memory-utilization", "0.90", "a margin for what else uses the GPU"),
        ("--api-server-count", "2", "one was the limit from about 100 users on"),
    ),
    "throughput": (
        ("--max-num-batched-tokens", "16384", "large steps: 17% more tokens/s at 64 users"),
        ("--max-num-seqs", "1024", "as many requests in a step as the KV cache holds"),
        ("--enable-chunked-prefill", "", "prompts fill what decoding leaves (no gain shown)"),
        ("--enable-prefix-caching", "", "with 84% shared, 18% more tokens/s"),
        ("--max-model-len", "8192", "more requests at once fit into the KV cache"),
        ("--gpu-memory-utilization", "0.95", "more KV cache, so more requests at once"),
        ("--api-server-count", "4", "70% more tokens/s at 256 users than with one"),
    ),
    # servers of two roles and a proxy, whose flags are those of lifecycle/deployments.py
    DISAGGREGATED: (),
}  # fmt: skip


def gpu_parts(text: str) -> tuple[str, ...]:
    """The GPUs of each server, of `0,1/2,3`. Raises ConfigError."""
    parts = tuple(part.strip() for part in text.split("/"))
    if not all(word.strip() for part in parts for word in part.split(",")):
        raise ConfigError(
            f"the GPUs are {text!r}: expected numbers, with a / between two servers; try 0,1/2,3."
        )
    return parts
