"""SLOs and sentences in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.slo import Slo


def promise(slos: Sequence[Slo], word: str = "stays") -> str:
    """`p95 TTFT stays under 500 ms and p95 ITL under 50 ms`."""
    verbs = [f" {word}", *[""] * (len(slos) - 1)]
    parts = [f"{slo_name(s)}{verb} under {limit(s)}" for s, verb in zip(slos, verbs, strict=True)]
    return _and(parts)


def slo_name(slo: Slo) -> str:
    """`p95 TTFT`."""
    metric, _, quantile = slo.name.partition("_")
    return f"{quantile} {metric_name(metric)}"


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def metric_name(metric: str) -> str:
    """`TTFT`; e2e stays as it is."""
    return metric if metric == "e2e" else metric.upper()


def limit(slo: Slo) -> str:
    """`500 ms`, `1.5 s`: as a person would write it."""
    unit, size = ("s", SECOND) if slo.limit_ns >= SECOND else ("ms", MS)
    return f"{slo.limit_ns / size:g} {unit}"


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
