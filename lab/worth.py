"""What many requests of an engine like a real one are worth, and what each window says of that.

    python -m lab.worth

In simulated time, with and without what makes the waves: the effect between twenty windows of 32 s,
which is nearly the true one, and what estimates see in a window by itself. The limit is the p95.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.units import SECOND
from lab.closed_loop import ClosedLoop
from lab.effect_estimators import ESTIMATES
from lab.wave_engines import LIKE_CHAT, LIKE_H100, bare
from lab.waves import starts_of

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig
    from lab.waves import Starts

USERS: Final = (64, 128, 163)
WINDOW_S: Final = 32
WINDOWS: Final = 20
WARM_UP_S: Final = 8
QUANTILE: Final = 0.95


def windows_of(engine: EngineConfig, users: int) -> tuple[list[Starts], float]:
    """(the windows, seconds that a request takes)."""
    loop = ClosedLoop(engine, LIKE_CHAT, 5)
    loop.set_users(users)
    loop.advance(WARM_UP_S * SECOND)
    found = []
    for _ in range(WINDOWS):
        start_ns = loop.now_ns
        loop.advance(start_ns + WINDOW_S * SECOND)
        found.append(starts_of(loop.table(start_ns, loop.now_ns), start_ns, loop.now_ns))
    return found, loop.lifetime_ns / SECOND


def line(engine: EngineConfig, users: int) -> str:
    windows, lifetime_s = windows_of(engine, users)
    limit_ms = np.quantile(np.concatenate([one.ttft_ms for one in windows]), QUANTILE)
    hits = np.array([(one.ttft_ms > limit_ms).sum() for one in windows])
    sizes = np.array([len(one.ttft_ms) for one in windows])
    share = hits.sum() / sizes.sum()
    squares = ((hits - share * sizes) ** 2).sum()
    effect = WINDOWS / (WINDOWS - 1) * squares / sizes.sum() / (share * (1 - share))
    cells = [f"{sizes.mean():.0f}", f"{effect:.0f}", f"{sizes.mean() / max(effect, 1):.0f}"]
    for estimate in ESTIMATES.values():
        worth = [
            len(one.ttft_ms)
            / estimate(
                one.sent_s / lifetime_s, one.ttft_ms > limit_ms, one.length_s / lifetime_s
            ).effect
            for one in windows
        ]
        low, middle, high = np.quantile(worth, (0.1, 0.5, 0.9))
        cells.append(f"{middle:.0f} ({low:.0f} to {high:.0f})")
    return " | ".join(cells)


def main() -> None:
    names = " | ".join(ESTIMATES)
    sys.stdout.write(f"| engine | users | requests | effect | worth | {names} |\n")
    sys.stdout.write("|---|--:|--:|--:|--:|" + "--:|" * len(ESTIMATES) + "\n")
    for name, engine in (("with a front end", LIKE_H100), ("without", bare(LIKE_H100))):
        for users in USERS:
            sys.stdout.write(f"| {name} | {users} | {line(engine, users)} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
