"""Recovery after an overload in simulated time: what is measured, and the figures that are kept."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from measured_recovery import DATA
from simulated_recovery import QUEUE, SEEDS, repeats_of, summary, tables, together
from stored_statistics import stored

REPEATS = stored("recovery")
KEPT = together(REPEATS, stored("recovery_knees"), stored("recovery_boundary"))
MEASURED: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in DATA.glob("recovery_*.json")
}
FILES = {"simulated": KEPT} | MEASURED
DOCS = Path(__file__).parents[1] / "docs" / "recovery.md"


def kept(kind: str, factor: float, queue: int, **more: object) -> dict[str, Any]:
    """The entry of a case."""
    wanted = {"retry_factor": factor, "max_queued": queue} | more
    (entry,) = (e for e in KEPT[kind] if wanted.items() <= e.items())
    return dict(entry)


def test_a_recovery_is_seen_as_the_queue_ends() -> None:
    """Within three seconds, wherever requests queue and the server comes back."""
    seen = {}
    for case, (seconds, _, _, queue_s) in REPEATS.items():
        if case[1] == 0 and seconds is not None and queue_s is not None:
            seen[case] = seconds - queue_s
    early_or_late = {case: late for case, late in seen.items() if not 0 <= late <= 3}
    assert early_or_late == {}
    assert len(seen) >= len(SEEDS)


def test_a_server_that_was_not_overloaded_recovers_at_once() -> None:
    """The former interval allows for what varies anyway."""
    assert list(stored("recovery_at_once").values()) == [0.0] * 3


@pytest.mark.parametrize("figures", MEASURED.values(), ids=MEASURED)
def test_summaries_are_of_their_repeats(figures: dict[str, Any]) -> None:
    """Medians, means and intervals again."""
    for entry in figures["recovery"]:
        again = summary(repeats_of(entry))
        assert {name: entry[name] for name in again} == again


def test_retries_keep_an_overload_alive() -> None:
    """The knee after an overload is lower the more clients retry; not with a short queue."""
    knees = [
        kept("knee", 1.0, 0, after=True)["ci95"],
        kept("knee", 0.5, 0, after=True)["ci95"],
        kept("knee", 0.0, 0, after=True)["ci95"],
        kept("knee", 0.0, 0, after=False)["ci95"],
    ]
    assert all(low[1] < high[0] for low, high in pairwise(knees))
    before = knees[-1]
    limited = kept("knee", 1.0, QUEUE, after=True)["ci95"]
    assert limited[1] >= before[0]
    never = kept("recovery", 1.0, 0)
    back = kept("recovery", 1.0, QUEUE)
    assert never["censored"] == len(SEEDS)
    assert back["censored"] == 0


@pytest.mark.parametrize("figures", FILES.values(), ids=FILES)
def test_the_documentation_has_these_figures(figures: dict[str, Any]) -> None:
    """docs/recovery.md quotes the tables as they are made here."""
    text = re.sub(r"\s+", " ", DOCS.read_text())
    rows = [re.sub(r"\s+", " ", row) for row in tables(figures)]
    assert [row for row in rows if row not in text] == []
