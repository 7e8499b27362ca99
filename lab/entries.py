"""What wave is left after a step up, by how new users enter.

    python -m lab.entries

In simulated time. For each step: how long entering took, and by how much the number of starts in a
quarter of a second, averaged over the seeds, deviates from the level's mean (0: no wave) in its
lifetimes 0 to 1, 2 to 4 and 4 to 8; then the autocorrelation of the starts of one run at a lag of
about a lifetime, in lifetimes 2 to 10.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from harness.engine.config import EngineConfig
from harness.senders.stagger import FIRST_LIFETIMES, UNKNOWN_STAGGER_S
from harness.units import MS, SECOND
from lab.closed_loop import ClosedLoop, Traffic
from lab.wave_engines import LIKE_H100, RECORDED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

ENGINES: Final = {
    "plain": EngineConfig(model="qwen2.5-7b", max_num_seqs=1024),
    "waves": RECORDED,
    "like an H100": LIKE_H100,
}
LENGTHS: Final = {"varied": Traffic(256, 128, 0.5), "alike": Traffic(256, 128, 0.0)}
STEPS: Final = ((0, 128), (0, 256), (64, 128), (128, 256))
# as they did where nothing was known; over what requests took before; over what they take by now
WAYS: Final = ("over 0.3 s", "over the old lifetime", "over the current lifetime")
FIRST_WAYS: Final = (WAYS[0], "as a first level")  # where nobody knows what requests take
BEFORE_S: Final = 12
AFTER_LIFETIMES: Final = 11
BIN_S: Final = 0.25
LOOK_NS: Final = 50 * MS
SEEDS: Final = 8
LEAST_NS: Final = 300 * MS


class Entry(NamedTuple):
    counts: Floats  # of starts by bin, from the step on
    lifetime_s: float
    took_s: float


def step_up(
    engine: EngineConfig, traffic: Traffic, users: tuple[int, int], way: str, seed: int
) -> Entry:
    loop = ClosedLoop(engine, traffic, seed)
    if users[0]:
        loop.set_users(users[0])
        loop.advance(BEFORE_S * SECOND)
    start_ns = loop.now_ns
    took_s = _enter(loop, users[1], way, seed)
    lifetime_s = max(loop.lifetime_ns / SECOND, BIN_S)
    loop.advance(loop.now_ns + int(3 * lifetime_s * SECOND))
    lifetime_s = loop.lifetime_ns / SECOND
    end_ns = start_ns + int(AFTER_LIFETIMES * lifetime_s * SECOND)
    loop.advance(end_ns)
    sent_ns = loop.table(start_ns, end_ns).sent_ns
    place = (sent_ns[sent_ns >= start_ns] - start_ns) // int(BIN_S * SECOND)
    bins = int(AFTER_LIFETIMES * lifetime_s / BIN_S)
    return Entry(np.bincount(place, minlength=bins)[:bins].astype(float), lifetime_s, took_s)


def _enter(loop: ClosedLoop, users: int, way: str, seed: int) -> float:
    """Add users until there are as many; how long that took, in s."""
    start_ns = loop.now_ns
    parts = np.sort(np.random.default_rng(seed).random(users - loop.users))
    known_ns = max(loop.lifetime_ns, LEAST_NS)
    entered = 0
    progress = 0.0
    while entered < len(parts):
        if way == FIRST_WAYS[1]:
            progress += LOOK_NS / _first_window_ns(loop)
        else:
            window_ns = {
                WAYS[0]: LEAST_NS,
                WAYS[1]: known_ns,
                WAYS[2]: max(loop.lifetime_ns, LEAST_NS),
            }[way]
            progress = (loop.now_ns - start_ns) / window_ns
        due = int(np.searchsorted(parts, progress))
        if due > entered:
            loop.add_users(due - entered)
            entered = due
        loop.advance(loop.now_ns + LOOK_NS)
    return float(loop.now_ns - start_ns) / SECOND


def _first_window_ns(loop: ClosedLoop) -> float:
    """Over what users enter at that moment, as harness/senders/stagger.py has it."""
    unknown_ns = UNKNOWN_STAGGER_S * SECOND
    if not loop.sample().requests_total:
        return unknown_ns
    first_ns = min(FIRST_LIFETIMES * loop.lifetime_ns, unknown_ns)
    return max(first_ns, loop.lifetime_ns, LEAST_NS)


def wave(entries: list[Entry], lifetimes: tuple[float, float]) -> float:
    """What the mean over the seeds deviates by, beyond its own noise; relative."""
    per_life = float(np.mean([entry.lifetime_s for entry in entries])) / BIN_S
    shortest = min(len(entry.counts) for entry in entries)
    counts = np.array([entry.counts[:shortest] for entry in entries])
    level = counts[:, int(6 * per_life) :].mean()
    part = counts[:, int(lifetimes[0] * per_life) : int(lifetimes[1] * per_life)]
    noise = part.var(axis=0, ddof=1).mean() / len(entries)
    squares = float(((part.mean(axis=0) - level) ** 2).mean() - noise)
    return float(np.sqrt(max(squares, 0.0)) / level)


def echo(entries: list[Entry]) -> float:
    """Autocorrelation of the starts a lifetime apart: the mean over runs of the largest nearby."""
    found = []
    for entry in entries:
        per_life = entry.lifetime_s / BIN_S
        counts = entry.counts[int(2 * per_life) : int(10 * per_life)]
        rest = counts - counts.mean()
        lags = range(max(int(0.8 * per_life), 1), int(1.2 * per_life) + 2)
        found.append(max(rest[lag:] @ rest[:-lag] for lag in lags) / (rest @ rest))
    return float(np.mean(found))


def main() -> None:
    say = sys.stdout.write
    say("| engine | lengths | users | entering | took | wave 0-1 | 2-4 | 4-8 | echo |\n")
    say("|---|---|---|---|--:|--:|--:|--:|--:|\n")
    for engine in ENGINES:
        for lengths in LENGTHS:
            for users in STEPS:
                for way in WAYS if users[0] else FIRST_WAYS:
                    runs = [
                        step_up(ENGINES[engine], LENGTHS[lengths], users, way, seed)
                        for seed in range(SEEDS)
                    ]
                    took_s = np.mean([run.took_s for run in runs])
                    waves = [wave(runs, part) for part in ((0, 1), (2, 4), (4, 8))]
                    cells = " | ".join(f"{one:.2f}" for one in (*waves, echo(runs)))
                    step = f"{users[0]} to {users[1]}"
                    say(f"| {engine} | {lengths} | {step} | {way} | {took_s:.1f} s | {cells} |\n")


if __name__ == "__main__":
    main()
