"""Engines with waves: as alike in time as a real server's records are, and drawn from seeds."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pytest

from harness.units import SECOND
from lab.closed_loop import ClosedLoop, Traffic
from lab.engine_configurations import configuration
from lab.wave_engines import (
    KINDS,
    LIKE_CHAT,
    LIKE_H100,
    RECORDED,
    bare,
    wave_configuration,
)
from lab.waves import WaveFigures, starts_of, wave_figures

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig

RECORDS = Path(__file__).parent / "data" / "waves_h200.json"
LEVELS = ("64", "128")
WARM_UP_NS = 6 * SECOND
END_NS = 56 * SECOND
FACTOR = 1.5


@cache
def recorded() -> dict[str, Any]:
    """Of vLLM on an H200."""
    return dict(orjson.loads(RECORDS.read_bytes()))


@cache
def simulated(users: str, engine: EngineConfig = RECORDED) -> list[WaveFigures]:
    """Of three seeds."""
    lengths = tuple((prompt, output) for prompt, output in recorded()["lengths"])
    found = []
    for seed in range(1, 4):
        loop = ClosedLoop(engine, Traffic(recorded=lengths), seed)
        loop.set_users(int(users))
        loop.advance(END_NS)
        starts = starts_of(loop.table(WARM_UP_NS, loop.now_ns), WARM_UP_NS, END_NS - SECOND)
        found.append(wave_figures(starts, int(users)))
    return found


@pytest.mark.parametrize("users", LEVELS)
def test_waves_are_those_of_the_records(users: str, figure: Callable[[str], None]) -> None:
    """Within a factor of 1.5: bursts of starts, likeness in a moment, variance between windows."""
    runs = simulated(users)
    want = recorded()["levels"][users]
    got = {
        "ttft_ms": np.mean([run.ttft_ms for run in runs]),
        "dispersion": np.mean([run.dispersion for run in runs]),
        "likeness": np.mean([run.ttft_correlation[0] for run in runs]),
        "effect_of_half_seconds": np.mean([run.window_effects["0.5 s"] for run in runs]),
        "effect": np.mean([run.effect for run in runs]),
    }
    want |= {"likeness": want["ttft_correlation"][0]}
    ratios = {name: float(value / want[name]) for name, value in got.items()}
    said = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    figure(f"{users} users, simulated over recorded: {said}")
    assert {name: 1 / FACTOR < ratio < FACTOR for name, ratio in ratios.items()} == dict.fromkeys(
        got, True
    )


@pytest.mark.parametrize("users", LEVELS)
def test_likeness_ends_as_soon_as_in_the_records(users: str) -> None:
    """Of requests 0.1 to 1 s apart."""
    got = np.mean([run.ttft_correlation for run in simulated(users)], axis=0)
    want = np.array(recorded()["levels"][users]["ttft_correlation"])
    assert np.abs(got - want)[1:].max() < 0.2


@pytest.mark.parametrize(
    ("users", "ttft_ms", "per_s"),
    [(128, 175, 71.7), (150, 276, 75.3), (163, 368, 74.6), (256, 890, 79.0)],
)
def test_latencies_are_those_of_an_h100(users: int, ttft_ms: float, per_s: float) -> None:
    """Mean TTFT within a quarter and requests/s within a tenth of what a search saw there.

    128 users: the mean of 127 and 128. Its records are not here, so waves cannot be compared.
    """
    loop = ClosedLoop(LIKE_H100, LIKE_CHAT, 1)
    loop.set_users(users)
    loop.advance(48 * SECOND)
    seen = wave_figures(starts_of(loop.table(8 * SECOND, loop.now_ns), 8 * SECOND, 47 * SECOND), 1)
    assert seen.ttft_ms == pytest.approx(ttft_ms, rel=0.25)
    assert seen.n / seen.seconds == pytest.approx(per_s, rel=0.1)


def test_a_draw_is_a_matter_of_its_seed() -> None:
    """200 engines, kinds in turn, no two alike; those without waves have none of their settings."""
    drawn = [wave_configuration(seed) for seed in range(200)]
    assert drawn == [wave_configuration(seed) for seed in range(200)]
    assert len({case.engine for case in drawn}) == 200
    assert [case.kind for case in drawn[:6]] == [*KINDS, *KINDS]
    assert all(case.engine.front_tokenizer_ns for case in drawn)
    assert not any(configuration(seed).engine.front_tokenizer_ns for seed in range(200))


def test_what_makes_the_waves() -> None:
    """Without tokenizer and front end the same engine's effect is less than half."""
    without = simulated("128", bare(RECORDED))
    effects = [np.mean([run.effect for run in runs]) for runs in (simulated("128"), without)]
    assert effects[0] > 2 * effects[1]
