"""The bottleneck in sentences: of the SLO that breaks first, and of those that break with it."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

from harness.metrics.numbers import format_number, slo_name
from harness.metrics.slo import Slo

if TYPE_CHECKING:
    from harness.metrics.result import Bottleneck, SloCause


def cause_sentences(bottleneck: Bottleneck | None) -> list[str]:
    """`Bottleneck: all 16 batch slots are taken ... (confidence 0.9).`, and what to try; or []."""
    if bottleneck is None or not bottleneck.sentence:
        return []
    of_slo = ""
    if bottleneck.also:
        of_slo = f" of {slo_name(Slo.parse(bottleneck.slo))}"
    why = _with_confidence(bottleneck.sentence, bottleneck.confidence)
    sentences = [f"Bottleneck{of_slo}: {why}."]
    sentences += [_beside(bottleneck, other) for other in bottleneck.also]
    if bottleneck.confidence > 0 and not isnan(bottleneck.times_knee):
        times = format_number(bottleneck.times_knee)
        sentences.append(
            f"It is the cause at {times} times the knee, as no level nearer to it breaks the SLO: "
            "at the knee another may bind."
        )
    if bottleneck.try_next:
        sentences.append(f"Try next: {bottleneck.try_next[0]}.")
    return sentences


def _beside(first: Bottleneck, other: SloCause) -> str:
    """Of an SLO that breaks at about the same load."""
    where = f"{slo_name(Slo.parse(other.slo))} breaks at about the same load"
    if other.bound_by == first.bound_by:
        return f"{where}, for the same reason."
    why = _with_confidence(other.sentence, other.confidence)
    return f"{where}: {why}."


def _with_confidence(sentence: str, confidence: float) -> str:
    text = sentence.rstrip(".")
    if confidence > 0:
        text += f" (confidence {confidence:.2g})"
    return text
