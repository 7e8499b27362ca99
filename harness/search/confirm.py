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
from harness.metrics.numbers import percent_text
from harness.metrics.result import Gate
from harness.metrics.statistics import block_count, t_quantile
from harness.search.decide import decide
from harness.search.held_levels import count_level
from harness.search.knee_estimate import PROMISED, estimate_knee
from harness.search.level_state import AFTER_SEARCH, next_level
from harness.search.next_level import Done, Hold
from harness.units import SECOND, say_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.metrics.result import Result
    from harness.search.decide import LevelResult, SloCounts
    from harness.search.level_state import ChooseNext, HeldLevel
    from harness.search.next_level import SearchPlan
    from harness.search.replay import RunTokenStats


HOLDS: Final = 2  # of the promise: after fewer users, and after more
SHOWN: Final = (Status.found, Status.holds)  # ends of a search from which promises are compared
AFTERWARDS: Final = "holds afterwards"  # the gate's name
WORDS: Final = {
    Verdict.met: "Confirmed:",
    Verdict.missed: "Not confirmed:",
    Verdict.inconclusive: "Not decided whether",
}


def searched(levels: Sequence[HeldLevel]) -> list[HeldLevel]:
    """The levels of the search, without those that were held once it had ended."""
    return [level for level in levels if level.window.purpose not in AFTER_SEARCH]


def confirming(confirm_ns: int, search: ChooseNext = next_level) -> ChooseNext:
    """The search, then the promise twice: a pure function of the levels, as the search is."""

    def choose(plan: SearchPlan, levels: Sequence[HeldLevel], spent_ns: int) -> Hold | Done:
        before = [level for level in levels if level.window.purpose != Purpose.hold]
        action = search(plan, before, spent_ns)
        if isinstance(action, Hold):
            return action
        knee = estimate_knee(plan, searched(levels), action)
        if knee.status not in PROMISED or not knee.holds:
            return action
        fewer = max(knee.holds // 2, 1)
        more = knee.fails_by or min(knee.holds * 5 // 4, plan.max_users)
        turns = [
            _hold(plan, fewer, confirm_ns // 8),
            _hold(plan, knee.holds, confirm_ns // 2),
            _hold(plan, more, confirm_ns // 8),
            _hold(plan, knee.holds, confirm_ns // 2),
        ]
        n_held = len(levels) - len(before)
        return turns[n_held] if n_held < len(turns) else action

    return choose


def _hold(plan: SearchPlan, count: int, max_ns: int) -> Hold:
    return Hold(plan.unit.of_count(count), Purpose.hold, StopRule.time, max_ns)


def confirmed(plan: SearchPlan, counted: RunTokenStats, levels: Sequence[HeldLevel]) -> list[Gate]:
    """Whether the promise held, and whether it differed after more users; [] if not asked for."""
    confirming_levels = [level for level in levels if level.window.purpose == Purpose.hold]
    if not plan.slos or not confirming_levels:
        return []
    holds = confirming_levels[1::2]  # of the promise: each after one of another level
    counts = [count_level(plan, hold.window, counted.levels[hold.window]) for hold in holds]
    verdicts: list[Verdict] = []
    for hold, result in zip(holds, decide(counts), strict=True):
        verdicts += _verdicts(hold, result)
    if len(holds) < HOLDS:  # interrupted
        verdict = min([*verdicts, Verdict.inconclusive], key=WORST_FIRST.index)
        return [Gate(AFTERWARDS, verdict, "The promise was not confirmed: its holds did not end.")]
    verdict = min(verdicts, key=WORST_FIRST.index)
    return [Gate(AFTERWARDS, verdict, _sentence(plan, verdict, holds, counts))]


def _verdicts(hold: HeldLevel, result: LevelResult) -> list[Verdict]:
    """Those that count of a hold."""
    if hold.invalid:
        return [Verdict.inconclusive]
    verdicts = [slo.verdict for slo in result.slos]
    if result.errors.verdict == Verdict.missed:
        verdicts.append(Verdict.missed)
    if hold.evidence.unstable and Verdict.missed not in verdicts:  # it would miss if held longer
        return [Verdict.inconclusive]
    return verdicts


def _sentence(
    plan: SearchPlan,
    verdict: Verdict,
    holds: Sequence[HeldLevel],
    counts: Sequence[Sequence[SloCounts]],
) -> str:
    """What the two holds of the promise show, the one after fewer users first."""
    windows = [hold.window for hold in holds]
    held_ns = sum(window.end_ns - window.settled_ns for window in windows)
    kind = plan.unit.load
    load = f"{windows[0].load.number:,} {plan.unit.short_many}"
    invalid = next((hold.invalid for hold in holds if hold.invalid), "")
    shares = []
    differing = []
    for slo, after_less, after_more in zip(plan.slos, *counts, strict=False):
        less = f"{_share(after_less):.1%} after {kind.less}"
        more = f"{_share(after_more):.1%} after {kind.more}"
        shares.append(f"{less} and {more} over {slo} ({percent_text(slo.allowed)} allowed)")
        if not invalid and differs(after_less, after_more):
            differing.append(str(slo))
    hysteresis = "no hysteresis is shown"
    if differing:
        hysteresis = f"hysteresis is shown: {' and '.join(differing)}"
    sentence = f"{WORDS[verdict]} {load} held for {say_ns(held_ns)} more: "
    sentence += f"{', '.join(shares)}; {hysteresis}."
    if verdict == Verdict.inconclusive:
        sentence += f" A hold cannot be used: {invalid}." if invalid else " Try a longer --confirm."
    return sentence


def _share(counts: SloCounts) -> float:
    return float(counts.k) / max(float(counts.n), 1)


def differs(a: SloCounts, b: SloCounts) -> bool:
    """Whether the shares over the limit of two holds differ, at 5%."""
    sizes = [max(float(counts.n), 1) for counts in (a, b)]
    # As the test assumes that they do not differ, both holds have the same share.
    share = (float(a.k) + float(b.k)) / sum(sizes)
    variance = 0.0
    for counts, size in zip((a, b), sizes, strict=True):
        design_effect = float(np.maximum(counts.effect, counts.above))
        variance += share * (1 - share) * design_effect / size
    blocks = min(int(block_count(counts.lifetimes)) for counts in (a, b))
    critical_t = t_quantile(0.975, max(blocks - 1, 1))
    distance = abs(_share(a) - _share(b))
    return bool(distance > critical_t * variance**0.5)


def spread(results: Sequence[Result], unit: str = "users") -> dict[str, Any]:
    """What several searches for the same knee promise, in a sentence too, and what they cost."""
    knees = [result.knee for result in results if result.status in SHOWN]
    promises = [knee.holds for knee in knees if knee and knee.holds]
    levels = [level for result in results for level in result.levels]
    load_s = sum(level.judged_ns - level.chosen_ns for level in levels) / SECOND
    requests = sum(level.all.ttft_ms.n for level in levels)
    mean = fmean(promises) if promises else nan
    deviation = stdev(promises) if len(promises) > 1 else nan
    headline = f"{len(promises)} of {len(results)} searches found a knee"
    if promises:
        headline += f" and promise {min(promises):,} to {max(promises):,} {unit}: mean {mean:.3g}"
    if len(promises) > 1:
        headline += f", standard deviation {deviation:.2g} ({deviation / mean:.1%})"
    headline += f". They took {load_s:,.0f} s of load and {requests:,} requests."
    return {
        "headline": headline,
        "promises": promises,
        "searches": len(results),
        "mean": mean,
        "deviation": deviation,
        "load_s": load_s,
        "requests": requests,
    }
