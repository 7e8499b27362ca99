"""A level whose requests have ended, as the live views show it."""

from __future__ import annotations

from dataclasses import dataclass

Quantile = tuple[float, float, float]  # (value, lo, hi) in ms; NaN: not known


@dataclass(frozen=True, slots=True)
class EndedLevel:
    """A level whose requests have ended: the figures that the report will have, too."""

    p95_ms: dict[str, Quantile]  # of HEADLINES
    output_tokens_per_s: float
    ended: int
    failed: int
    n_open: int = 0  # its requests that had not ended yet: their latencies are too short
    whole: bool = True  # False: its gaps are those of the last MAX_WINDOW_NS
