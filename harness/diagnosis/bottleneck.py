"""The bottleneck at the knee: RULES over the figures of one level, the first above the knee.

Each rule gets the same `VerdictInputs` and returns a confidence in [0, 1) and its evidence: the
probability of its cause if it were the only one. Together they are odds c / (1 - c) against 1 for
"unknown", so that the probabilities of all causes and of "unknown" add up to 1, and two causes that
both hold share it. Below `MIN_PROBABILITY`, or where "unknown" is more likely than not, the verdict
is undecided, which is a valid answer.
"""

from __future__ import annotations

from collections.abc import Callable
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
    found = {name: rule(f) for name, rule in RULES.items()}
    odds = {
        name: f.breaks * f.part_in_wait(name) * one.confidence / (1 - one.confidence)
        for name, one in found.items()
    }
    whole = 1 + sum(odds.values())
    # Rounded down, so that they never add up to more than 1; the rest is unknown.
    share = {name: floor(100 * one / whole + 1e-9) / 100 for name, one in odds.items() if one}
    unknown = round(1 - sum(share.values()), 2)
    named = sorted(share, key=lambda name: -share[name])  # stable: RULES' order among equals
    causes = [Cause(*one) for one in (*share.items(), (UNKNOWN, unknown)) if one[1]]
    causes.sort(key=lambda one: -one.probability)
    load = f"{f.users:,}" if isinstance(f.users, int) else f"{f.users:.3g}"
    held = f"{load} {f.unit} held for {f.seconds:,.0f} s"
    window = f"{held}, {f.samples:.0f} readings of the server"
    decided = bool(named) and share[named[0]] >= MIN_PROBABILITY and unknown <= MAX_UNKNOWN
    named = [name for name in named if decided and share[name] >= RIVAL * share[named[0]]]
    perhaps = "less likely" if decided else "possible, not sure enough"
    why = tuple(
        f"{name}: {f'{perhaps} ({share[name]:.2f})' if name in share else one.against}"
        for name, one in found.items()
        if name not in named
    )
    if not decided:
        silent = "no cause is sure enough by the figures"
        if isnan(f.running):
            silent = "the server does not show its running requests"
        elif f.breaks <= MAX_UNKNOWN:
            silent = "requests are in time at this level"
        return Bottleneck(
            UNDECIDED, f"not decided: {silent}", 0.0, window, tuple(causes), ruled_out=why
        )
    told = [found[name] for name in named]
    return Bottleneck(
        named[0],
        "; or ".join(one.sentence for one in told),
        share[named[0]],
        window,
        tuple(causes),
        tuple(dict.fromkeys(line for one in told for line in one.evidence)),
        why,
        (
            *dict.fromkeys(line for one in told for line in one.try_next),
            *["another replica"] * (named[0] not in ELSEWHERE),
        ),
    )
