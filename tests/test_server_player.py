"""The player in simulated time: what it observes and hands on is known to the nanosecond."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from engine_play import small

from harness.engine.engine_metrics import EngineMetrics
from harness.engine.player import BEHIND_NS, PacedPlayer, Player
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig

START = 5 * SECOND


@dataclass(eq=False)
class Heard:
    """A listener that keeps when its tokens came."""

    received_ns: int
    clock: list[int]
    at: list[int] = field(default_factory=list)
    ended: int = 0

    def on_prefilled(self, cached_tokens: int) -> None:
        """Not of interest."""

    def emitted(self, tokens: int, *, finished: bool) -> None:
        """Tokens came, now."""
        self.at += [self.clock[0]] * tokens
        self.ended += finished


def play(player: Player, clock: list[int], looks: int = 100_000) -> int:
    """Call it exactly when it is due until nothing is planned; how often that was."""
    player.play(clock[0])
    for count in range(looks):
        due = player.due_ns()
        if due < 0:
            return count
        clock[0] = max(clock[0], due)
        player.play(clock[0])
    return looks


def start(config: EngineConfig, asks: list[tuple[int, int]]) -> tuple[Player, list[Heard]]:
    """Requests of (prompt, output) tokens, all received at START; played to the end."""
    player = Player(config, EngineMetrics(config, "m"))
    clock = [START]
    heard = [Heard(START, clock) for _ in asks]
    for one, (prompt, output) in zip(heard, asks, strict=True):
        player.submit(one, prompt, output, [])
    play(player, clock)
    return player, heard


@pytest.mark.parametrize(
    ("config", "asks", "preemptions"),
    [
        (small(), [(8, 4)], 0),
        (small(front_end_ns=3 * MS), [(8, 4), (20, 6)], 0),
        (small(max_num_seqs=1), [(8, 4), (8, 4), (4, 1)], 0),
        # 8 blocks of 4: two prompts take 2 + 2, and both grow to 7 blocks (8 + 20 - 1 tokens)
        (small(num_gpu_blocks=8), [(8, 20), (8, 20)], 1),
    ],
)
def test_observed(config: EngineConfig, asks: list[tuple[int, int]], preemptions: int) -> None:
    """Listeners, counters and histograms tell the same story, preempted or not."""
    player, heard = start(config, asks)
    figures = player.figures
    engine = player.engine
    assert engine.preemptions_total == preemptions
    outputs = [output for _, output in asks]
    assert [len(one.at) for one in heard] == outputs
    assert [one.ended for one in heard] == [1] * len(outputs)
    assert engine.generation_tokens_total == sum(outputs)
    assert engine.prompt_tokens_total == sum(prompt for prompt, _ in asks)
    counts = (figures.ttft, figures.queue, figures.prefill, figures.decode, figures.e2e)
    for one in counts:
        assert sum(one.counts) == len(asks)
    assert sum(figures.gap.counts) == sum(outputs) - len(asks)
    ttft_ns = sum(one.at[0] - START for one in heard)
    e2e_ns = sum(one.at[-1] - START for one in heard)
    assert figures.ttft.sum == pytest.approx(ttft_ns / 1e9)
    assert figures.e2e.sum == pytest.approx(e2e_ns / 1e9)
    waits = [later - earlier for one in heard for earlier, later in pairwise(one.at)]
    assert figures.gap.sum == pytest.approx(sum(waits) / 1e9)
    assert figures.decode.sum == pytest.approx(sum(waits) / 1e9)
    assert len(engine.running) == 0
    assert len(engine.waiting) == 0
    assert engine.kv_usage == 0.0


@pytest.mark.parametrize("late_ns", [0, BEHIND_NS, BEHIND_NS + 1, 3 * SECOND])
@pytest.mark.parametrize("step", [0, 2, 4])
def test_time_lost(step: int, late_ns: int) -> None:
    """Behind by more than a second the plan is given up: every figure has the time that was lost.

    Up to a second the engine's own times stand, whatever the front end's lag.
    """
    player = Player(small(), EngineMetrics(small(), "m"))
    clock = [START]
    one = Heard(START, clock)
    player.submit(one, 8, 5, [])
    play(player, clock, step)
    player.play(START)
    clock[0] = player.due_ns() + late_ns
    play(player, clock)
    figures = player.figures
    lost_ns = late_ns if late_ns > BEHIND_NS else 0
    assert figures.lost_ns == lost_ns
    assert len(one.at) == 5
    ttft = figures.ttft.sum
    gap = figures.gap.sum
    e2e = figures.e2e.sum
    assert ttft == pytest.approx(figures.prefill.sum)
    assert gap == pytest.approx(figures.decode.sum)
    assert ttft + gap == pytest.approx(e2e)
    assert figures.inference.sum == pytest.approx(e2e)
    # 5 steps of about 10 ms
    assert e2e - lost_ns / SECOND == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize("late_ns", [0, 25 * MS])
def test_late_front_end(late_ns: int) -> None:
    """Steps of 10 ms that ended meanwhile are handed on at one look: none is lost or stretched."""
    config = small()
    prompt, heard = start(config, [(8, 30)])
    player = Player(config, EngineMetrics(config, "m"))
    clock = [START]
    one = Heard(START, clock)
    player.submit(one, 8, 30, [])
    player.play(START)
    while (due := player.due_ns()) >= 0:
        clock[0] = due + late_ns
        player.play(clock[0])
    assert player.figures.gap.sum == pytest.approx(prompt.figures.gap.sum)
    assert player.figures.late_max_ns == late_ns
    assert (len(set(one.at)) == 30) == (late_ns == 0)
    assert len(one.at) == len(heard[0].at) == 30


@pytest.mark.parametrize("gone_after", [0, 1, 5])
def test_abort(gone_after: int) -> None:
    """A client that leaves before its prompt, at it or amid its tokens holds nothing any more."""
    player = Player(small(), EngineMetrics(small(), "m"))
    clock = [START]
    leaving = Heard(START, clock)
    staying = Heard(START, clock)
    number = player.submit(leaving, 8, 20, [])
    player.submit(staying, 8, 20, [])
    play(player, clock, gone_after)
    player.abort(number)
    player.abort(number)  # harmless
    before = len(leaving.at)
    play(player, clock)
    assert len(leaving.at) == before
    assert leaving.ended == 0
    assert len(staying.at) == 20
    done = {k: n for k, n in player.figures.finished.items() if n}
    assert done == {"length": 1, "abort": 1}
    assert len(player.engine.running) == 0
    assert player.engine.kv_usage == 0.0


@pytest.mark.parametrize(("late_ns", "want_ms"), [(0, [100, 120, 140]), (15 * MS, [115, 135, 155])])
def test_paced(late_ns: int, want_ms: list[int]) -> None:
    """By the clock alone: late tokens are late, and the next ones keep their phase."""
    player = PacedPlayer(small(), EngineMetrics(small(), "m"), 100 * MS, 20 * MS)
    clock = [START]
    one = Heard(START, clock)
    player.submit(one, 8, 3, [])
    while (due := player.due_ns()) >= 0:
        assert player.figures.running == 1
        clock[0] = due + late_ns
        player.play(clock[0])
    assert [(at - START) / MS for at in one.at] == want_ms
    assert player.figures.running == 0
    assert player.figures.finished["length"] == 1
    assert player.engine.prompt_tokens_total == 8
    assert player.engine.generation_tokens_total == 3
