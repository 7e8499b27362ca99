"""What the report says where something else came than was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from harness.metrics.numbers import as_sentence

if TYPE_CHECKING:
    from harness.metrics.result import Level
    from harness.report.report_data import ReportData

LEAST_SHARE: Final = 0.01  # of a level's answers: fewer are in result.json alone


def delivery_sentences(facts: ReportData) -> list[str]:
    """Of the level where most is different, invalid ones included; [] if all is as it was asked."""
    different = [level for level in facts.levels if _share(level) >= LEAST_SHARE]
    if not different:
        return []
    level = max(different, key=_share)
    where = f"At {facts.unit.text(level.load)}"
    sentences = [as_sentence(f"{where}, {text}") for text in level.delivery.sentences]
    others = len(different) - 1
    if others:
        sentences[0] += f" Others differ too: {others} more of {len(facts.levels)} levels."
    return sentences


def _share(level: Level) -> float:
    """Of answers that had another length; prompts are others on average, or not."""
    delivery = level.delivery
    if delivery.prompts_differ:
        return 1.0
    return (delivery.shorter + delivery.longer) / max(delivery.n, 1)
