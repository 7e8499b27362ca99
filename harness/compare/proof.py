"""A diagnosis is right if turning the knob of its cause moves the knee most: knobs, verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from harness.metrics.level_figures import Change
from harness.metrics.result import Proof
from harness.search.comparison import KNEE, knee_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.metrics.level_figures import Difference
    from harness.search.comparison import Comparison, Setting

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
    out = []
    for flag, turn in KNOBS.get(cause, {}).items():
        now = str({**DEFAULTS, **flags}.get(flag, "")).lower()
        if isinstance(turn, str) or now.isdecimal():
            new = turn if isinstance(turn, str) else str(int(int(now) * turn))
            out += [f"server.{flag.replace('_', '-')}={new}"] * (new != now)
    return out


def prove(tried: Mapping[str, Sequence[Setting]], pairs: Iterable[Comparison]) -> Proof:
    """`tried`: by cause, the settings of its knobs; the named cause is the first one.

    `pairs` are of AS_STARTED and of what was measured.
    """
    knees = {(c.a, c.b): d for c in pairs for d in c.differences if d.metric == KNEE}
    turned = [
        next((s.name for s in of if (AS_STARTED, s.name) in knees), "") for of in tried.values()
    ]
    moved = [knees.get((AS_STARTED, name)) for name in turned]
    named, rival = [*moved, None, None][:2]
    verdict = judge(named, rival, knees.get((turned[0], turned[-1])) if turned else None)
    said = []
    for (cause, settings), name, d in zip(tried.items(), turned, moved, strict=True):
        none = "its flag's present value is not known" if cause in KNOBS else "no flag turns it"
        why = "; ".join(one.failure or "interrupted" for one in settings) or none
        said.append(f"{cause}: {_sentence(name, d) if d else why}")
    sentence = f"Diagnosis {verdict}: {'; '.join(said) or 'no cause is named'}."
    return Proof(verdict, sentence, {name: d for name, d in zip(turned, moved, strict=True) if d})


def judge(named: Difference | None, rival: Difference | None, between: Difference | None) -> str:
    """From what each knob does to the knee; `between`: the runner-up against the named one."""
    further = between is not None and between.verdict is Change.better
    if named and (further or named.verdict is Change.worse or _is_still(named)):
        return "refuted"
    most = named and named.verdict is Change.better and not (rival and rival.change > named.change)
    return "confirmed" if most else "not shown"


def _is_still(moved: Difference) -> bool:
    """Whether it is shown that the knee does not rise by PROOF_TOLERANCE.

    A comparison says *no difference* as soon as no loss is possible; the gain may still be large.
    """
    no_loss = moved.verdict is Change.no_difference_shown
    return no_loss and moved.ci95[1] < PROOF_TOLERANCE


def _sentence(name: str, d: Difference) -> str:
    a, b = knee_text(d.a, d.unit), knee_text(d.b, d.unit)
    ends = "{:+.0%}, {:+.0%} to {:+.0%}".format(d.change, *d.ci95)
    return f"{name.replace('server.', '--')} moves the knee from {a} to {b} ({ends})"
