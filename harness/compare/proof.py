"""A diagnosis is right if turning the knob of its cause moves the knee most: knobs, verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from harness.core.load import unit_named
from harness.metrics.level_figures import Change
from harness.metrics.result import Proof
from harness.search.comparison import KNEE, knee_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.metrics.level_figures import Difference
    from harness.search.comparison import Comparison, Setting

    Knees = Mapping[tuple[str, str], Difference]  # of two settings

# A knob that moves the knee by less is not what limits it. No smaller: a found knee is within 20%.
PROOF_TOLERANCE: Final = 0.2
# Cause -> flags: a factor on the present value, or the new value. The first one with which the
# server starts is turned. Nothing turns the others: the GPU's speed, network, client, arrivals.
KNOBS: Final[dict[str, dict[str, float | str]]] = {
    "batch slots": {"max_num_seqs": 2},
    "KV cache capacity": {"num_gpu_blocks_override": 2, "kv_cache_dtype": "fp8"},
    "prefill-decode interference": {"max_num_batched_tokens": 0.5},
    "front end": {"api_server_count": 2},
    "engine process": {"async_scheduling": "true"},
}
AS_STARTED: Final = "as started"  # the name of the setting before any knob is turned
DEFAULTS: Final = {"api_server_count": 1}  # of vLLM, which does not say


def turns(cause: str, flags: Mapping[str, Any]) -> list[str]:
    """`["server.max-num-seqs=16"]`: what to set, best first, where `flags` are the present ones."""
    present = {**DEFAULTS, **flags}
    settings = []
    for flag, turn in KNOBS.get(cause, {}).items():
        now = str(present.get(flag, "")).lower()
        if isinstance(turn, str):
            new = turn
        elif now.isdecimal():
            new = str(int(int(now) * turn))
        else:  # a factor on a value that is not known
            continue
        if new != now:
            settings.append(f"server.{flag.replace('_', '-')}={new}")
    return settings


def prove(tried: Mapping[str, Sequence[Setting]], pairs: Iterable[Comparison]) -> Proof:
    """`tried`: by cause, the settings of its knobs; the named cause is the first one.

    `pairs` are of AS_STARTED and of what was measured.
    """
    knees = _knee_differences(pairs)
    turned = []
    sentences = []
    by_setting = {}
    for cause, settings in tried.items():
        name = _first_measured(settings, knees)
        turned.append(name)
        moved = knees.get((AS_STARTED, name))
        if moved is None:
            sentences.append(f"{cause}: {_why_unmoved(cause, settings)}")
        else:
            sentences.append(f"{cause}: {_sentence(name, moved)}")
            by_setting[name] = moved
    verdict = _verdict(turned, knees)
    causes = "; ".join(sentences) or "no cause is named"
    return Proof(verdict, f"Diagnosis {verdict}: {causes}.", by_setting)


def _knee_differences(pairs: Iterable[Comparison]) -> Knees:
    knees = {}
    for pair in pairs:
        for difference in pair.differences:
            if difference.metric == KNEE:
                knees[pair.a, pair.b] = difference
    return knees


def _verdict(turned: Sequence[str], knees: Knees) -> str:
    """`turned`: the knob of each cause, the named one's first; "" where none was measured."""
    named = rival = between = None
    if turned:
        named = knees.get((AS_STARTED, turned[0]))
    if len(turned) > 1:
        rival = knees.get((AS_STARTED, turned[1]))
        between = knees.get((turned[0], turned[1]))
    return judge(named, rival, between)


def _first_measured(settings: Sequence[Setting], knees: Knees) -> str:
    """The first setting whose knee was compared with that before any knob; "" without one."""
    names = (setting.name for setting in settings if (AS_STARTED, setting.name) in knees)
    return next(names, "")


def _why_unmoved(cause: str, settings: Sequence[Setting]) -> str:
    """Why no knob of a cause was measured."""
    if settings:
        return "; ".join(setting.failure or "interrupted" for setting in settings)
    if cause in KNOBS:
        return "its flag's present value is not known"
    return "no flag turns it"


def judge(named: Difference | None, rival: Difference | None, between: Difference | None) -> str:
    """From what each knob does to the knee; `between`: the runner-up against the named one."""
    if named is None:
        return "not shown"
    rival_is_better = between is not None and between.verdict is Change.better
    if rival_is_better or named.verdict is Change.worse or _is_still(named):
        return "refuted"
    rival_moves_more = rival is not None and rival.change > named.change
    if named.verdict is Change.better and not rival_moves_more:
        return "confirmed"
    return "not shown"


def _is_still(moved: Difference) -> bool:
    """Whether it is shown that the knee does not rise by PROOF_TOLERANCE.

    A comparison says *no difference* as soon as no loss is possible; the gain may still be large.
    """
    no_loss = moved.verdict is Change.no_difference_shown
    return no_loss and moved.ci95[1] < PROOF_TOLERANCE


def _sentence(name: str, d: Difference) -> str:
    """`--max-num-seqs=16 moves the knee from 34 to 61 (+79%, +60% to +101%)`."""
    flag = name.replace("server.", "--")
    unit = unit_named(d.unit)
    knees = f"from {knee_text(d.a, unit)} to {knee_text(d.b, unit)}"
    low, high = d.ci95
    return f"{flag} moves the knee {knees} ({d.change:+.0%}, {low:+.0%} to {high:+.0%})"
