"""What a run's server has room for, beside its knee."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from measure_tables import record, table

from harness.core.states import Status, Verdict
from harness.metrics.level_figures import MaxNumSeqs
from harness.metrics.result import Knee, Level, Result, SloResult, Target
from harness.records.folder_reader import Damage, Run
from harness.report.bounds import bounds_chart, bounds_of, bounds_sentence
from harness.report.report_data import ReportData

NONE = {}
LLAMA = {"model": "llama-3.1-8b", "gpu": "h100"}


def facts(
    knee: int,
    slots: int | None,
    flags: dict[str, str],
    cached: int = 0,
    kv_tokens: int = 24_000,
    status: Status = Status.found,
) -> ReportData:
    """A searched knee of requests of 100 prompt tokens and 56 more, 128 at mid-life."""
    request = replace(
        record(0, 0, [1.0] * 56), prompt_tokens=100, output_tokens=56, cached_tokens=cached
    )
    info = {"server": {"kv_tokens": kv_tokens, "block_size": 16}}
    run = Run(Path(), info, table(request), [], [], [], [], [], Damage())
    target = Target(
        simulated=bool(flags),
        gpu=flags.get("gpu", ""),
        flags=flags,
        max_num_seqs=MaxNumSeqs(slots),
    )
    slos = (SloResult("itl_p95=20ms", Verdict.met),)
    found = Knee(estimate=knee, ci95=(knee, knee))
    return ReportData(run, Result(knee=found, target=target, slos=slos, status=status))


def test_an_inconclusive_search_has_no_knee_to_speak_of() -> None:
    """Its estimate is called so."""
    said = bounds_sentence(facts(60, 64, NONE, status=Status.inconclusive))
    assert said.endswith("The best estimate of the knee is 60: bound by the slots.")


@pytest.mark.parametrize(
    ("highest", "end"),
    [
        (52, "The best estimate of the knee is 46: below all of them."),
        (160, "The best estimate of the knee is 46: bound by the KV cache."),  # 80% of 187.5: 150
    ],
)
def test_an_open_end_says_no_more_than_the_highest_level(highest, end):
    """Where no level failed, the interval reaches to the most users allowed."""
    seen = facts(46, 256, NONE, status=Status.inconclusive)
    knee = replace(seen.result.knee, ci95=(26, 2048))
    result = replace(seen.result, knee=knee, levels=(Level(0, users=26), Level(1, users=highest)))
    assert bounds_sentence(replace(seen, result=result)).endswith(end)


@pytest.mark.parametrize(
    ("given", "want", "end"),
    [
        # 24,000 / 128 = 187.5
        ((150, 256, NONE), [187.5, 256], "The knee was 150: bound by the KV cache."),
        ((149, 256, NONE), [187.5, 256], "The knee was 149: below all of them."),  # 80% of 187.5
        ((60, 64, NONE), [64, 187.5], "The knee was 60: bound by the slots."),
        ((60, None, NONE), [187.5], "The knee was 60: below all of them."),
        # 3.35e12 * 0.02 s = 67e9 bytes less 16.06e9 of weights, 131,072 * 128 of each request
        ((60, 64, LLAMA), [64, 187.5, 3036.3], "The knee was 60: bound by the slots."),
        (
            (60, 64, {"model": "qwen2.5-32b", "gpu": "l4"}),
            [0, 64, 187.5],
            "bandwidth within the ITL.",
        ),
        ((60, 64, NONE, 6), [], ""),  # 6 of 100 prompt tokens are shared
    ],
)
def test_bounds(given, want, end):
    """The lowest bound first; it binds a knee that comes near it."""
    seen = facts(*given)
    assert [round(bound, 1) for bound in bounds_of(seen).values()] == want
    assert bounds_sentence(seen).endswith(end)
    assert (bounds_chart(seen) is not None) == bool(want)
