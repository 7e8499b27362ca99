"""The bottleneck at the knee: RULES over the figures of one level, the first above the knee.

Each rule gets the same `VerdictInputs` and returns a confidence in [0, 1] and its evidence. The
highest confidence wins; below `MIN_CONFIDENCE` the verdict is undecided, which is a valid answer.
"""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Final

from harness.measure.diagnosis.rules.admission import kv_capacity, slots
from harness.measure.diagnosis.rules.outside_engine import bursts, client, network, throttled
from harness.measure.diagnosis.rules.processes import engine_process, front_end
from harness.measure.diagnosis.rules.prompts import decode, interference, prefill
from harness.measure.result import Bottleneck, Cause

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.measure.diagnosis.rules.inputs import VerdictInputs
    from harness.measure.diagnosis.rules.rule_result import RuleResult

MIN_CONFIDENCE: Final = 0.5
UNDECIDED: Final = "undecided"

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
    """The rule with the highest confidence, or undecided with what is missing."""
    found = {name: rule(f) for name, rule in RULES.items()}
    best = max(found, key=lambda name: found[name].confidence)
    held = f"{f.users:,} users held for {f.seconds:,.0f} s"
    window = f"{held}, {f.samples:.0f} readings of the server"
    silent = "no cause is sure enough by the figures"
    if isnan(f.running):
        silent = "the server does not show its running requests"
    ranked = sorted(found, key=lambda name: -found[name].confidence)
    causes = tuple(Cause(name, found[name].confidence) for name in ranked if found[name].confidence)
    decided = found[best].confidence >= MIN_CONFIDENCE
    perhaps = "less likely" if decided else "possible, not sure enough"
    why = [
        f"{name}: {f'{perhaps} ({one.confidence:.2f})' if one.confidence else one.against}"
        for name, one in found.items()
        if not decided or name != best
    ]
    if not decided:
        undecided = f"not decided: {silent}"
        return Bottleneck(UNDECIDED, undecided, 0.0, window, causes, ruled_out=tuple(why))
    one = found[best]
    return Bottleneck(
        best,
        one.sentence,
        round(one.confidence, 2),
        window,
        causes,
        tuple(one.evidence),
        tuple(why),
        tuple(one.try_next),
    )
