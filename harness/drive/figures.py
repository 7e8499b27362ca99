"""The load processes' figures about themselves, made one for all: the worst, or the sum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

SUMS: Final = (
    "events", "reads", "cpu_s", "decoder_cpu_s", "decoder_restarts", "decoder_backlog",
    "clock_steps",
)  # fmt: skip
WORST: Final = ("loop_lag_p99_ms", "loop_lag_max_ms", "decoder_hold_max_ms")


def merge(figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One for all processes.

    `stamp_source` is "kernel" only if it is everywhere; `exact_share` is over all events.
    """
    some = [f for f in figures if f]
    if not some:
        return {}
    merged: dict[str, Any] = {key: round(sum(f.get(key) or 0 for f in some), 3) for key in SUMS}
    merged |= {key: max((f.get(key) or 0.0 for f in some), default=None) for key in WORST}
    sources = {f["stamp_source"] for f in some}
    exact = sum((f["exact_share"] or 0.0) * f["events"] for f in some)
    return merged | {
        "processes": len(some),
        "stamp_source": sources.pop() if len(sources) == 1 else "read",
        "exact_share": round(exact / merged["events"], 6) if merged["events"] else None,
    }
