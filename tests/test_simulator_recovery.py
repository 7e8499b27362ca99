"""Recovery after an overload in simulated time: what is measured, and the figures that are kept."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from measured_recovery import DATA
from simulated_recovery import (
    BASELINE,
    CASES,
    QUEUE,
    SEEDS,
    STORED,
    measured,
    overloaded,
    repeats_of,
    rounded,
    summary,
    tables,
)

from harness.units import SECOND

KEPT: dict[str, Any] = json.loads(STORED.read_text())
FILES = {"simulated": KEPT} | {
    path.stem: json.loads(path.read_text()) for path in DATA.glob("recovery_*.json")
}
DOCS = Path(__file__).parents[1] / "docs" / "recovery.md"
BACKLOG = 50  # requests: far more wait in the overload, and ten at most in the baseline


def kept(kind: str, factor: float, queue: int, **more: object) -> dict[str, Any]:
    """The entry of a case."""
    wanted = {"retry_factor": factor, "max_queued": queue} | more
    (entry,) = (e for e in KEPT[kind] if wanted.items() <= e.items())
    return dict(entry)


@pytest.mark.parametrize(("factor", "queue"), CASES[::2])  # all of them take half a minute more
def test_a_repeat_is_as_it_is_kept(factor: float, queue: int) -> None:
    """One seed again; if it differs, `python tests/simulated_recovery.py` computes all of them.

    Where requests queue, the recovery is seen within three seconds of the queue's end.
    """
    run = overloaded(factor, queue, SEEDS[0])
    got = measured(run)
    entry = kept("recovery", factor, queue)
    assert [rounded(one) for one in (got.seconds, got.former_ms, got.good_lost)] == entry["each"][0]
    end = run.phases["overload"][1]
    queued = [s.at_ns for s in run.samples if s.at_ns >= end and s.waiting >= BACKLOG]
    if queue == 0 and got.came_back:
        assert 0 <= got.seconds - (queued[-1] - end) / SECOND <= 3


def test_a_server_that_was_not_overloaded_recovers_at_once() -> None:
    """The former interval allows for what varies anyway."""
    runs = [overloaded(0.0, 0, seed, overload=BASELINE, watched_s=60.0) for seed in (101, 102, 103)]
    assert [measured(run).seconds for run in runs] == [0.0] * 3


@pytest.mark.parametrize("figures", FILES.values(), ids=FILES)
def test_summaries_are_of_their_repeats(figures: dict[str, Any]) -> None:
    """Medians, means and intervals again."""
    for entry in figures["recovery"]:
        again = summary(repeats_of(entry))
        assert {name: entry[name] for name in again} == again


def test_retries_keep_an_overload_alive() -> None:
    """The knee after an overload is lower the more clients retry; not with a short queue."""
    knees = [
        kept("knee", factor, queue, after=after)["ci95"]
        for factor, queue, after in (
            (1.0, 0, True), (0.5, 0, True), (0.0, 0, True), (0.0, 0, False),
        )
    ]  # fmt: skip
    assert all(low[1] < high[0] for low, high in pairwise(knees))
    before, limited = knees[-1], kept("knee", 1.0, QUEUE, after=True)["ci95"]
    assert limited[1] >= before[0]
    never, back = kept("recovery", 1.0, 0), kept("recovery", 1.0, QUEUE)
    assert (never["censored"], back["censored"]) == (len(SEEDS), 0)


@pytest.mark.parametrize("figures", FILES.values(), ids=FILES)
def test_the_documentation_has_these_figures(figures: dict[str, Any]) -> None:
    """docs/recovery.md quotes the tables as they are made here."""
    text = re.sub(r"\s+", " ", DOCS.read_text())
    assert [row for row in tables(figures) if re.sub(r"\s+", " ", row) not in text] == []
