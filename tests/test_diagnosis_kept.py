"""The rules on kept observations of real servers, where doubling a resource showed the truth."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from kept_observations import Kept, cases, kept_form

from harness.core.states import Verdict
from harness.core.typed_json import to_json
from harness.diagnosis.bottleneck import RULES, UNDECIDED
from harness.metrics.level_figures import MaxNumSeqs
from harness.metrics.result import Knee, Result, SloResult, Target

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SURE = 0.8
CASES = {case.name: case for case in cases()}
TRIED = {name: case for name, case in CASES.items() if case.truth}
# Cases that today's rules name wrongly: a new one fails the test, and so does one that is mended.
MISSED = {
    "CPU, steps of 512 tokens": "prefill compute",  # half a step would be as long as the limit
}


def test_the_knob_that_moved_the_knee_is_named(figure: Callable[[str], None]) -> None:
    """Every miss is written down, and none is sure of itself."""
    got = {name: case.judge() for name, case in TRIED.items()}
    for name, found in got.items():
        causes = ", ".join(f"{one.name} {one.probability:.2f}" for one in found.causes)
        figure(f"real: {name}: moved most by {TRIED[name].truth}; named {causes}")
    missed = {n: f.bound_by for n, f in got.items() if f.bound_by != TRIED[n].truth}
    assert missed == MISSED
    assert [n for n in missed if got[n].confidence >= SURE] == []


def test_every_truth_is_a_cause() -> None:
    """A truth that no rule can name would be a miss for ever."""
    assert {case.truth for case in TRIED.values()} - set(RULES) == set()


def test_a_kept_case_is_judged_as_its_result(tmp_path: Path) -> None:
    """What is left out of a kept case is read by no rule."""
    case = CASES["H200 with 3,000 KV blocks"]
    result = Result(
        target=Target(max_num_seqs=MaxNumSeqs(256)),
        slos=tuple(SloResult(str(slo), Verdict.missed) for slo in case.slos),
        knee=Knee(estimate=case.knee, curves=case.curves),
        levels=tuple(case.levels),
    )
    whole = tmp_path / "result.json"
    kept = tmp_path / "kept.json"
    whole.write_text(json.dumps(to_json(result)))
    kept.write_text(json.dumps(kept_form(to_json(result))))
    assert Kept.read(whole).judge() == Kept.read(kept).judge() == case.judge()


def test_servers_that_prefill_by_what_a_real_one_shows() -> None:
    """Its one request at a time looked like a slot."""
    found = CASES["CPU, NIXL, prefill apart"].judge()
    assert (found.pool, found.bound_by, found.confidence) == ("prefill", "prefill compute", 0.9)


@pytest.mark.parametrize(
    ("name", "advised"),
    [
        (
            "H200, steps of up to 16,384 tokens",
            ["lower {flag} (shorter gaps, more steps for a prompt)"],
        ),
        ("H200, steps of up to 2,048 tokens", []),  # first tokens are late: longer steps held fewer
    ],
)
def test_the_advice_does_not_contradict_the_slo(name: str, advised: list[str]) -> None:
    """The flag that the study turned."""
    flag = "--max-num-batched-tokens"
    said = [one for one in CASES[name].judge().try_next if flag in one]
    assert said == [one.format(flag=flag) for one in advised]


@pytest.mark.parametrize("above", [48, 64])
def test_the_small_cache_at_each_failing_level(above: int) -> None:
    """It is the cache at 64 users, which fail a little, and at 128, which all fail."""
    case = replace(CASES["H200 with 3,000 KV blocks"], knee=above)
    assert case.judge().bound_by == "KV cache capacity"


def test_slots_that_are_free_are_not_called_taken() -> None:
    """237 of 512 ran at most, 229 on average, and prompts waited for a step with room."""
    case = CASES["H200, 512 slots, chunked prefill off"]
    assert "batch slots" not in {one.name for one in case.judge().causes}


def test_below_the_knee_nothing_is_named() -> None:
    """At 48 users of that server every first token is in time."""
    case = CASES["H200 with 3,000 KV blocks"]
    below = [level for level in case.levels if level.users <= 48]
    assert replace(case, levels=below).judge().bound_by == UNDECIDED
