"""What bound the knee: RULES over the figures of one step, the first above the knee.

Each rule sees the same `Facts` and answers with a confidence in [0, 1] and its evidence; the
highest wins, below `ENOUGH` the verdict is undecided, which is a legal answer.
"""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Final

from harness.measure.result import Bottleneck
from harness.measure.rules.around import bursts, client, network, throttled
from harness.measure.rules.decoding import decode
from harness.measure.rules.processes import engine_process, front_end
from harness.measure.rules.prompts import interference, prefill
from harness.measure.rules.seating import kv_capacity, slots

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.measure.rules.facts import Facts
    from harness.measure.rules.finding import Finding

ENOUGH: Final = 0.5
UNDECIDED: Final = "undecided"

# what a verdict can name; of two as sure, the one nearer to the client comes first
RULES: Final[dict[str, Callable[[Facts], Finding]]] = {
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


def conclude(f: Facts) -> Bottleneck:
    """The rule with most confidence, or undecided with what is missing."""
    found = {name: rule(f) for name, rule in RULES.items()}
    best = max(found, key=lambda name: found[name].confidence)
    window = (
        f"{f.users:,} users held for {f.seconds:,.0f} s, {f.samples:.0f} readings of the server"
    )
    if isnan(f.running):
        silent = "the server does not show its running requests"
    else:
        silent = "no cause is sure enough by the figures"
    decided = found[best].confidence >= ENOUGH
    perhaps = "less likely" if decided else "possible, not sure enough"
    why = [
        f"{name}: {f'{perhaps} ({one.confidence:.2f})' if one.confidence else one.against}"
        for name, one in found.items()
        if not decided or name != best
    ]
    if not decided:
        return Bottleneck(UNDECIDED, f"not decided: {silent}", 0.0, window, ruled_out=tuple(why))
    one = found[best]
    return Bottleneck(
        best,
        one.sentence,
        round(one.confidence, 2),
        window,
        tuple(one.evidence),
        tuple(why),
        tuple(one.knobs),
    )
