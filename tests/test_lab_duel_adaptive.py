"""aiperf's `adaptive_scale` as a rival: its rules on planted servers, its windows on an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from harness.units import MS, SECOND
from lab.duel_adaptive import AdaptiveScale, AtOnce, Continuous, Found, Seen, Settings
from lab.engine_configurations import configuration

if TYPE_CHECKING:
    from harness.metrics.slo import Slo
    from harness.records.record_table import RecordTable

LIMIT_MS = 100.0
OVER, NOTHING = 2 * LIMIT_MS, None


class Planted:
    """Latency is 1 ms per user; some windows, by their place, show something else instead."""

    def __init__(self, shown: dict[int, float | None]) -> None:
        self.shown = shown
        self.held: list[int] = []
        self.sent_from_s: list[float] = []

    def watch(self, users: int, seconds: float, sent_from_s: float) -> Seen:
        observed = self.shown.get(len(self.held), float(users))
        self.held.append(users)
        self.sent_from_s.append(sent_from_s)
        return Seen(0, np.nan) if observed is None else Seen(round(seconds), observed)


# The margin of 1 user is 99%: int(0.99 * 4) steps of 10. That of 31 is 69%: two. From 51 on: one.
CLIMB = [1, 31, 51, 61, 71, 81, 91, 101]


@pytest.mark.parametrize(
    ("shown", "held", "users", "sustained"),
    [
        # 101 users are over the limit; 91 meet it in the climb and while they are held
        ({}, [*CLIMB, 91, 91, 91], 91, True),
        # a quantile at the limit meets it: 111 users end the climb; a step back from 101 that fail
        ({7: LIMIT_MS}, [*CLIMB, 111, 101, 91, 91], 91, True),
        # a window in which nothing completed decides nothing
        ({0: NOTHING, 3: NOTHING}, [1, 1, 31, 51, 51, 61, 71, 81, 91, 101, 91, 91, 91], 91, True),
        # but it is a part of the hold
        ({9: NOTHING}, [*CLIMB, 91, 91, 91], 91, True),
        # the first window misses the limit: there is nothing to hold
        ({0: OVER}, [1], None, False),
        # while held, a window over the limit takes one step back, however far it is over
        ({8: OVER}, [*CLIMB, 91, 81, 81], 81, True),
        # two in a row end it as failed; the last that met the limit are those of the climb
        ({8: OVER, 9: OVER}, [*CLIMB, 91, 81], 91, False),
        # two that are not in a row are two steps back, and the hold ends with a window that passes
        ({8: OVER, 10: OVER}, [*CLIMB, 91, 81, 81, 71], 71, True),
        # a step back goes to one user at the least, and from there is none
        ({1: OVER, 2: OVER}, [1, 31, 1], 1, False),
        ({1: 99.0, 2: OVER, 3: OVER, 4: 99.0}, [1, 31, 41, 31, 21, 21], 21, True),
    ],
)
def test_what_follows_from_each_window(shown, held, users, sustained):
    """The users of each window, and what the end says: the limit is met by up to 100 users."""
    server = Planted(shown)
    found = AdaptiveScale(server.watch, LIMIT_MS, Settings(sustain_windows=3)).run()
    assert server.held == held
    assert (found.users, found.sustained) == (users, sustained)
    assert found.seconds == 30 * len(held)


@pytest.mark.parametrize(
    ("limit_ms", "settings", "held"),
    [
        # 5% are one user up to 20, two up to 40, three up to 60: 47 of them are over 45 ms
        (
            45.0,
            Settings(step_percent=5, sustain_windows=1),
            [*range(1, 21), *range(21, 41, 2), 41, 44, 47, 44],
        ),
        # a quarter of one user is one
        (4.0, Settings(step_percent=25, sustain_windows=1), [1, 2, 3, 4, 5, 4]),
        # three steps of 10 at a time, and no more than 512 users, which end it without a boundary
        (1e6, Settings(), [*range(1, 512, 30), 512]),
        # the run ends before the hold does, or before it begins
        (LIMIT_MS, Settings(most_windows=10), [*CLIMB, 91, 91]),
        (LIMIT_MS, Settings(most_windows=5), CLIMB[:5]),
    ],
)
def test_how_far_it_climbs(limit_ms, settings, held):
    """By a share of the users, by the margin, and not beyond the most or the end of the run."""
    server = Planted({})
    found = AdaptiveScale(server.watch, limit_ms, settings).run()
    assert server.held == held
    assert found.sustained == (settings.sustain_windows == 1)


def test_what_it_says_at_the_end() -> None:
    """The boundary is what it held at first, 8 windows of 10 s after the start."""
    server = Planted({8: OVER})
    settings = Settings(window_s=10, sustain_windows=3)
    assert AdaptiveScale(server.watch, LIMIT_MS, settings).run() == Found(
        users=81,
        first_failing=101,
        boundary=91,
        boundary_s=80,
        sustained=True,
        seconds=110,
        windows=11,
    )
    # while it is held, what was sent to 101 users does not count
    assert server.sent_from_s == [0] * 8 + [80] * 3


def test_the_same_search_within_a_budget() -> None:
    """As many windows, so long that they take it."""
    settings = Settings(step_percent=5).within(600, 80)
    assert settings == Settings(window_s=7.5, most_windows=80, step_percent=5)


TTFT_SEED, ITL_SEED = 246, 243


@pytest.fixture(scope="module", params=[TTFT_SEED, ITL_SEED])
def engine(request) -> tuple[list[Seen], RecordTable, Slo]:
    """Windows of 8 users, of 16 and of 16 again, and every record of the same load."""
    case = configuration(request.param)
    (slo,) = case.slos
    server = Continuous(case, request.param)
    seen = [server.watch(8, 10, 0), server.watch(16, 10, 0), server.watch(16, 10, 20)]
    loop = AtOnce(case.engine, case.traffic, request.param)
    loop.set_users(8)
    loop.advance(10 * SECOND)
    loop.set_users(16)
    loop.advance(60 * SECOND)
    return seen, loop.table(0, 60 * SECOND), slo


def test_a_window_of_an_engine(engine) -> None:
    """Requests that completed in it, whenever they were sent; in the third: sent in it, too."""
    seen, table, slo = engine
    for window, (begin_s, end_s, sent_from_s) in zip(
        seen, [(0, 10, 0), (10, 20, 0), (20, 30, 20)], strict=True
    ):
        completed = (table.done_ns > begin_s * SECOND) & (table.done_ns <= end_s * SECOND)
        rows = np.flatnonzero(completed & (table.sent_ns >= sent_from_s * SECOND)).tolist()
        events = [table.at_ns[table.offsets[row] : table.offsets[row + 1]] for row in rows]
        if slo.metric == "itl":
            values_ns = np.concatenate([np.diff(at_ns) for at_ns in events])
        else:
            values_ns = [
                at_ns[0] - table.sent_ns[row] for row, at_ns in zip(rows, events, strict=True)
            ]
        assert window.requests == len(rows) > 10
        assert window.observed_ms == pytest.approx(np.quantile(values_ns, 0.95) / MS)


def test_users_start_at_once_and_stop_at_the_end_of_a_request() -> None:
    """A raised limit lets all new ones start; a lowered one cuts nothing off."""
    case = configuration(TTFT_SEED)
    loop = AtOnce(case.engine, case.traffic, TTFT_SEED)
    loop.set_users(8)
    loop.advance(SECOND)
    assert loop.table(0, SECOND).sent_ns.tolist()[:8] == [0] * 8
    loop.set_users(3)
    assert loop.running_users == 8
    loop.set_users(5)  # two of those that would have stopped stay
    assert loop.running_users == 8
    loop.advance(30 * SECOND)
    assert loop.running_users == 5
