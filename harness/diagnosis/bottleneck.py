"""The bottleneck at the knee: RULES over the figures of one level, the first above the knee.

Each rule gets the same `VerdictInputs` and returns a confidence in [0, 1) and its evidence: the
probability of its cause if it were the only one. Together they are odds c / (1 - c) against 1 for
"unknown", so that the probabilities of all causes and of "unknown" add up to 1, and two causes that
both hold share it. Below `MIN_PROBABILITY`, or where "unknown" is more likely than not, the verdict
is undecided, which is a valid answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from math import floor, isnan
from typing import TYPE_CHECKING, Final

from harness.diagnosis.rules.outside_engine import bursts, client, network, throttled
from harness.diagnosis.rules.processes import engine_process, front_end, kv_capacity, slots
from harness.diagnosis.rules.prompts import decode, interference, prefill
from harness.metrics.result import Bottleneck, Cause

if TYPE_CHECKING:
    from harness.diagnosis.rules.inputs import VerdictInputs
    from harness.diagnosis.rules.rule_result import RuleResult

MAX_UNKNOWN: Final = 0.5
MIN_PROBABILITY: Final = 1 / 3
RIVAL: Final = 0.5  # of the first one's probability: then the second one is said, too
UNDECIDED: Final = "undecided"
UNKNOWN: Final = "unknown"
ELSEWHERE: Final = ("client", "network", "GPU throttled")  # another replica does not help

# The possible verdicts. Of two with the same confidence the first one wins: nearer to the client.
RULES: Final[dict[str, Callable[[VerdictInputs], RuleResult]]] = {
    "client": client,
    "network": network,
    "GPU throttled": throttled,
    "arrival bursts": bursts,
    "front end": front_end,
    "engine process": engine_process,
    "KV cache capacity": kv_capacity,
    "batch slots": slots,
    "prefill compute": prefill,
    "prefill-decode interference": interference,
    "decode bandwidth": decode,
}


def diagnose(f: VerdictInputs) -> Bottleneck:
    """The most probable cause, or undecided with what is missing."""
    results = {name: rule(f) for name, rule in RULES.items()}
    probabilities = _probabilities(f, results)
    unknown = round(1 - sum(probabilities.values()), 2)
    named = _named(probabilities, unknown)
    causes = _causes(probabilities, unknown)
    not_named = _not_named(results, probabilities, named)
    if not named:
        sentence = f"not decided: {_why_undecided(f)}"
        return Bottleneck(UNDECIDED, sentence, 0.0, _window(f), causes, ruled_out=not_named)
    named_results = [results[name] for name in named]
    sentences = [result.sentence for result in named_results]
    evidence = _lines_once(result.evidence for result in named_results)
    try_next = _lines_once(result.try_next for result in named_results)
    likeliest = named[0]
    if likeliest not in ELSEWHERE:
        try_next.append("add a server that prefills" if f.prefills_only else "add a replica")
    return Bottleneck(
        bound_by=likeliest,
        sentence="; or ".join(sentences),
        confidence=probabilities[likeliest],
        window=_window(f),
        causes=causes,
        evidence=tuple(evidence),
        ruled_out=not_named,
        try_next=tuple(try_next),
    )


def _lines_once(of_causes: Iterable[Sequence[str]]) -> list[str]:
    """Two causes may share evidence and remedies: each line once, the likelier's first."""
    return list(dict.fromkeys(chain.from_iterable(of_causes)))


def _probabilities(f: VerdictInputs, results: Mapping[str, RuleResult]) -> dict[str, float]:
    """Of each cause that is possible, in hundredths. What they lack to 1 is unknown."""
    # Confidences that do not know of each other are no probabilities, so they count as odds, each
    # for its part of the wait (decision 17).
    odds = {}
    for name, result in results.items():
        weighted = f.breaks * f.part_in_wait(name) * result.confidence
        odds[name] = weighted / (1 - result.confidence)
    total = 1 + sum(odds.values())  # 1: the odds of "unknown"
    probabilities = {}
    for name, odd in odds.items():
        if odd:
            # Rounded down, so that they never add up to more than 1.
            hundredths = floor(100 * odd / total + 1e-9)
            probabilities[name] = hundredths / 100
    return probabilities


def _named(probabilities: Mapping[str, float], unknown: float) -> list[str]:
    """The likeliest cause and its rivals, likeliest first; [] if none is likely enough."""
    # stable: the order of RULES among equals
    ranked = sorted(probabilities, key=lambda name: -probabilities[name])
    if not ranked or unknown > MAX_UNKNOWN:
        return []
    highest = probabilities[ranked[0]]
    if highest < MIN_PROBABILITY:
        return []
    return [name for name in ranked if probabilities[name] >= RIVAL * highest]


def _causes(probabilities: Mapping[str, float], unknown: float) -> tuple[Cause, ...]:
    """What is possible, "unknown" included, likeliest first."""
    causes = [Cause(name, probability) for name, probability in probabilities.items()]
    causes.append(Cause(UNKNOWN, unknown))
    possible = [cause for cause in causes if cause.probability]
    return tuple(sorted(possible, key=lambda cause: -cause.probability))


def _not_named(
    results: Mapping[str, RuleResult], probabilities: Mapping[str, float], named: Sequence[str]
) -> tuple[str, ...]:
    """Every other cause, with the reason against it, or how likely it is."""
    less = "less likely" if named else "possible, not sure enough"
    lines = []
    for name, result in results.items():
        if name in named:
            continue
        reason = result.against
        if name in probabilities:
            reason = f"{less} ({probabilities[name]:.2f})"
        lines.append(f"{name}: {reason}")
    return tuple(lines)


def _why_undecided(f: VerdictInputs) -> str:
    if isnan(f.server.running_mean):
        return "the server does not report running requests"
    if f.breaks <= MAX_UNKNOWN:
        return "requests are under the limit at this level"
    return "the figures make no cause probable enough"


def _window(f: VerdictInputs) -> str:
    """The level that was judged, in words."""
    concurrency = f.level.concurrency
    load = f"{concurrency:,}" if isinstance(concurrency, int) else f"{concurrency:.3g}"
    held = f"{load} {f.unit} held for {f.level.seconds:,.0f} s"
    return f"{held}, {f.server.samples:.0f} readings of the server"
