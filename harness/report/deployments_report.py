"""Deployments in words: what each holds, per GPU and at which cost, and which is best for what."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isinf
from typing import TYPE_CHECKING, Final

from harness.capacity.sizing import cost_per_million_tokens
from harness.core.load import unit_named
from harness.metrics.numbers import Quantity, as_sentence, format_number
from harness.metrics.result import Target
from harness.search.comparison import KNEE, knee_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.search.comparison import Best, Setting

TOKENS: Final = "output_tokens_per_s"
ABOVE: Final = "above all levels"
PER_GPU: Final = "What follows compares users and throughput per GPU."
GOALS: Final = {
    KNEE: "Most {many} per GPU",
    TOKENS: "Most output tokens/s per GPU",
    "ttft_p95": "Lowest p95 TTFT",
    "itl_p95": "Lowest p95 ITL",
}


@dataclass(frozen=True, slots=True)
class DeploymentFindings:
    """What a report of deployments says besides that of any settings."""

    sentences: list[str] = field(default_factory=list)
    columns: dict[str, dict[str, str]] = field(default_factory=dict)  # of each setting, by name
    best_rows: list[dict[str, str]] = field(default_factory=list)


def deployment_findings(
    settings: Sequence[Setting], bests: Sequence[Best], price_per_hour: float | None
) -> DeploymentFindings:
    """Nothing where no setting is a deployment."""
    deployed = [setting for setting in settings if setting.deployment]
    measured = [setting for setting in deployed if setting.per_gpu]
    sentences = [_holds(setting) for setting in measured if KNEE in setting.figures]
    if measured:
        sentences.append(PER_GPU)
    return DeploymentFindings(
        sentences,
        {setting.name: _columns(setting, price_per_hour) for setting in deployed},
        [_best_row(best, deployed) for best in bests],
    )


def _holds(setting: Setting) -> str:
    """As `With tp-2 each server of 2 GPUs holds 108 (101 to 115) users, 54 (50 to 57) per GPU`."""
    target = Target(servers=setting.servers, gpus=setting.gpus)
    unit = unit_named(setting.unit)
    each = f"each {target.noun}{target.many_gpus}"
    value, low, _ = setting.figures[KNEE]
    if isinf(value) and not isinf(low):
        least_per_gpu = format_number(setting.per_gpu[KNEE][1])
        return as_sentence(
            f"with {setting.name} {each} holds at least {knee_text(low, unit)} {unit.short_many} "
            f"(95%), {least_per_gpu} per GPU: its knee is above all levels"
        )
    knee = _knee(setting.figures[KNEE], setting.unit)
    per_gpu = _share(setting.per_gpu[KNEE])
    return as_sentence(
        f"with {setting.name} {each} holds {knee} {unit.short_many}, {per_gpu} per GPU"
    )


def _knee(figure: Sequence[float], unit_name: str) -> str:
    """`108 (101 to 115)`."""
    unit = unit_named(unit_name)
    value, low, high = (knee_text(end, unit) for end in figure)
    return f"{value} ({low} to {high})"


def _share(figure: Sequence[float]) -> str:
    """`13.5 (12.1 to 15.2)`: users of one GPU, who are no whole number."""
    value, low, high = (ABOVE if isinf(end) else format_number(end) for end in figure)
    return f"{value} ({low} to {high})"


def _cell(figure: Sequence[float]) -> str:
    """`1,204 (1,190 to 1,221)`."""
    value, low, high = figure
    return Quantity(value, low, high).cell


def _columns(setting: Setting, price_per_hour: float | None) -> dict[str, str]:
    """What the table of settings has of a deployment."""
    unit = unit_named(setting.unit)
    columns = {"GPUs": str(setting.gpus or "?")}
    knee = setting.per_gpu.get(KNEE)
    if knee:
        columns[f"{unit.short_many.capitalize()} per GPU"] = _share(knee)
    tokens = setting.per_gpu.get(TOKENS)
    if tokens:
        columns["Output tokens/s per GPU"] = _cell(tokens)
    if tokens and price_per_hour:
        value, low, high = (_cost(price_per_hour, per_s) for per_s in tokens)
        columns["Cost of a million output tokens"] = Quantity(value, high, low).cell
    return columns


def _cost(price_per_hour: float, tokens_per_s: float) -> float:
    return cost_per_million_tokens(price_per_hour, tokens_per_s) if tokens_per_s > 0 else inf


def _best_row(best: Best, settings: Sequence[Setting]) -> dict[str, str]:
    setting = next(one for one in settings if one.name == best.setting)
    unit = unit_named(setting.unit)
    goal = GOALS[best.metric].format(many=unit.short_many)
    if best.load:
        goal += f" at {format_number(best.load)} {unit.short_many} per GPU"
    if best.metric == KNEE:
        figure = _share(best.figure)
    else:
        figure = _cell(best.figure)
        if best.load:
            figure += " ms"
    return {
        "With": best.among or "this load",
        "Best for": goal,
        "Deployment": setting.deployment,
        "Figure": figure,
        "Not shown to beat": ", ".join(_deployment_of(name, settings) for name in best.ties) or "-",
    }


def _deployment_of(name: str, settings: Sequence[Setting]) -> str:
    return next(one.deployment for one in settings if one.name == name)
