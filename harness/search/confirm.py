"""`knee --confirm 2m`: the promised level once more, after fewer users and after more.

A search holds a level for seconds. Afterwards, half of the time is spent at the promise coming from
half as many users, half of it coming from the level that failed, and an eighth before each at
those. Both are judged as `run` would, in one look. If more requests are over a limit after an
overload, the server keeps something of it: hysteresis. `--repeat 5`: the spread between searches.
"""

from __future__ import annotations

from math import nan
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.core.states import WORST_FIRST, Purpose, Status, StopRule, Verdict
from harness.metrics.result import Gate
from harness.metrics.statistics import block_count, t_quantile
from harness.search.comparison import PER_S
from harness.search.decide import counts_of, decide
from harness.search.knee_estimate import estimate_knee
from harness.search.level_state import next_level
from harness.search.next_level import Done, Hold
from harness.units import SECOND, say_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.metrics.result import Result
    from harness.search.decide import SloCounts
    from harness.search.level_state import ChooseNext, HeldLevel
    from harness.search.next_level import SearchPlan
    from harness.search.replay import RunTokenStats


PROMISED: Final = (Status.found, Status.not_reached)
AFTERWARDS: Final = "holds afterwards"  # the gate's name
WORDS: Final = {
    Verdict.met: "Confirmed:",
    Verdict.missed: "Not confirmed:",
    Verdict.inconclusive: "Not decided whether",
}


def searched(levels: Sequence[HeldLevel]) -> list[HeldLevel]:
    """The levels of the search, without those that confirm its answer."""
    return [level for level in levels if level.window.purpose != Purpose.hold]


def confirming(confirm_ns: int) -> ChooseNext:
    """The search, then the promise twice: a pure function of the levels, as the search is."""

    def choose(plan: SearchPlan, levels: Sequence[HeldLevel], spent_ns: int) -> Hold | Done:
        own = searched(levels)
        action = next_level(plan, own, spent_ns)
        if isinstance(action, Hold):
            return action
        found = estimate_knee(plan, own, action)
        if found.status not in PROMISED:
            return action
        holds = found.holds
        more = found.fails_by or min(holds * 5 // 4, plan.max_users)
        turns = [(max(holds // 2, 1), 8), (holds, 2), (more, 8), (holds, 2)]
        if not holds or len(levels) - len(own) == len(turns):
            return action
        users, part = turns[len(levels) - len(own)]
        return Hold(users, Purpose.hold, StopRule.time, confirm_ns // part)

    return choose


def confirmed(plan: SearchPlan, counted: RunTokenStats, levels: Sequence[HeldLevel]) -> list[Gate]:
    """Whether the promise held, and whether it differed after more users; [] if not asked for."""
    every = [level for level in levels if level.window.purpose == Purpose.hold]
    if not plan.slos or not every:
        return []
    twice = every[1::2]
    seen = [(level.window, counted.levels[level.window]) for level in twice]
    counts = [
        counts_of(one.table, w, plan.slos, plan.max_errors, judged=one.judged, gaps=one.tokens.gaps)
        for w, one in seen
    ]
    verdicts = [Verdict.inconclusive] * (2 - len(twice))  # interrupted
    for level, found in zip(twice, decide(counts), strict=True):
        of = [one.verdict for one in found.slos]
        of += [Verdict.missed] * (found.errors.verdict == Verdict.missed)
        grows = bool(level.evidence.unstable) and Verdict.missed not in of
        verdicts += [Verdict.inconclusive] if level.invalid or grows else of
    verdict = min(verdicts, key=WORST_FIRST.index)
    if len(twice) < 2:  # noqa: PLR2004 - as above
        return [Gate(AFTERWARDS, verdict, "The promise was not confirmed: its holds did not end.")]
    held = sum(w.end_ns - w.settled_ns for w, _ in seen)
    rates = bool(plan.rate_step_per_s)
    load = f"{plan.load_of(seen[0][0].users):,} {PER_S if rates else 'users'}"
    less, more = ("a lower rate", "a higher one") if rates else ("fewer users", "more")
    why = next((level.invalid for level in twice if level.invalid), "")
    over, differ = [], []
    for slo, low, high in zip(plan.slos, *counts, strict=False):
        share, later = (float(c.k) / max(float(c.n), 1) for c in (low, high))
        shares = f"{share:.1%} after {less} and {later:.1%} after {more}"
        over.append(f"{shares} over {slo} ({slo.allowed:.1%} allowed)")
        differ += [str(slo)] * (not why and differs(low, high))
    way = f"hysteresis is shown: {' and '.join(differ)}" if differ else "no hysteresis is shown"
    said = f"{WORDS[verdict]} {load} held for {say_ns(held)} more: {', '.join(over)}; {way}."
    if verdict == Verdict.inconclusive:
        said += f" A hold cannot be used: {why}." if why else " Try a longer --confirm."
    return [Gate(AFTERWARDS, verdict, said)]


def differs(*holds: SloCounts) -> bool:
    """Whether the shares over the limit of two holds differ, at 5%."""
    sizes, hits = [max(float(c.n), 1) for c in holds], [float(c.k) for c in holds]
    both = sum(hits) / sum(sizes)
    effects = [float(np.maximum(c.effect, c.above)) for c in holds]
    error = sum(both * (1 - both) * e / n for e, n in zip(effects, sizes, strict=True)) ** 0.5
    blocks = min(int(block_count(c.lifetimes)) for c in holds)
    far = abs(hits[0] / sizes[0] - hits[1] / sizes[1])
    return bool(far > t_quantile(0.975, max(blocks - 1, 1)) * error)


def spread(results: Sequence[Result], unit: str = "users") -> dict[str, Any]:
    """What several searches for the same knee promise, in a sentence too, and what they cost."""
    kept = [one.knee.holds for one in results if one.status == Status.found and one.knee]
    promises, levels = [one for one in kept if one], [x for one in results for x in one.levels]
    mean = fmean(promises) if promises else nan
    deviation = stdev(promises) if len(promises) > 1 else nan
    load_s = sum(level.judged_ns - level.chosen_ns for level in levels) / SECOND
    requests = sum(level.all.ttft_ms.n for level in levels)
    said = f"{len(promises)} of {len(results)} searches found a knee"
    if promises:
        said += f" and promise {min(promises):,} to {max(promises):,} {unit}: mean {mean:.3g}"
    if len(promises) > 1:
        said += f", standard deviation {deviation:.2g} ({deviation / mean:.1%})"
    said += f". They took {load_s:,.0f} s of load and {requests:,} requests."
    return {
        "headline": said,
        "promises": promises,
        "searches": len(results),
        "mean": mean,
        "deviation": deviation,
        "load_s": load_s,
        "requests": requests,
    }
