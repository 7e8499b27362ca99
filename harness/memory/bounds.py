"""Upper bounds on tokens/s: what full bandwidth and full matrix rate allow."""

from __future__ import annotations


def decode_tokens_per_s(bandwidth_bytes_s: float, weight_bytes: float, kv_bytes: float) -> float:
    """Return each user's tokens/s at most: a step reads the weights and all users' KV caches."""
    return bandwidth_bytes_s / (weight_bytes + kv_bytes)


def compute_tokens_per_s(flops_s: float, parameters: float) -> float:
    """Return all tokens/s at most that so many parameters multiply; attention is left out."""
    return flops_s / (2 * parameters)
