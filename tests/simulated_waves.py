"""Searches of engines whose requests come in waves (lab/wave_engines.py), in simulated time.

`PYTHONPATH=. python tests/simulated_waves.py [PROCESSES]` writes data/true_knees_of_waves.json (20
minutes on two cores). A true knee costs as much as a dozen searches, so each engine is searched
several times, each time with other requests.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simulated_knee import ends_at_stops, first_promise, search

from harness.search.fit import fit_levels
from harness.search.level_state import valid_evidence
from harness.search.next_level import decided_levels
from harness.units import SECOND
from lab.closed_loop import ClosedLoop
from lab.reference_knee import true_knee, worst_log_ratio
from lab.wave_engines import wave_configuration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.engine_configurations import Configuration

TRUTHS = Path(__file__).parent / "data" / "true_knees_of_waves.json"
DRAWN: Final = range(30)
LEAST, MOST = 4, 400  # knees that the default search range can see and halve
ENGINES: Final = 20
SEARCHES: Final = 10  # of each engine
# The share over a limit is then known to about a tenth, and the knee to about 1%.
LONGEST_NS: Final = 900 * SECOND
OTHER_DRAWS: Final = (10_000, 20_000)
AWAY: Final = 0.08


def truth(drawn: int) -> int:
    """The true knee of one engine, from long runs on other draws; 0: it has no single one."""
    case = wave_configuration(drawn)
    users = true_knee(case.engine, case.traffic, case.slos, longest_ns=LONGEST_NS).users
    return users if not LEAST <= users <= MOST or is_agreed(case, users) else 0


def is_agreed(case: Configuration, users: int) -> bool:
    """Whether runs with other requests have the knee there, too.

    Where requests are nearly of one length users may stay in step for good, or never begin to, and
    the same level then holds in one run and fails in the next.
    """
    away = max(2, round(AWAY * users))
    return all(
        _log_ratio(case, users - away, draw) <= 0 < _log_ratio(case, users + away, draw)
        for draw in OTHER_DRAWS
    )


def _log_ratio(case: Configuration, users: int, draw: int) -> float:
    """Of the worst latency to its limit, in a long run of these requests."""

    def start(seed: int) -> ClosedLoop:
        return ClosedLoop(case.engine, case.traffic, seed + draw)

    return worst_log_ratio(
        case.engine, case.traffic, case.slos, users, longest_ns=LONGEST_NS, start=start
    )


def known_truths() -> dict[int, int]:
    """Engine -> true knee, of the first in range."""
    every = json.loads(TRUTHS.read_text()) if TRUTHS.exists() else {}
    in_range = [(int(drawn), users) for drawn, users in every.items() if LEAST <= users <= MOST]
    return dict(in_range[:ENGINES])


def answer(drawn: int, repeat: int) -> list[Any]:
    """As `simulated_knee.answer`, without the cost; then the levels that were decided wrongly.

    These are those above the knee that passed, of those that passed, and those at the knee or below
    it that failed, of those that failed.
    """
    case = wave_configuration(drawn)
    true = known_truths()[drawn]
    found, plan, levels, _ = search(case, drawn * SEARCHES + repeat)
    stops = ends_at_stops(plan, levels, true)
    fitted = fit_levels(valid_evidence(levels), plan.slos, plan.max_errors)
    passed, failed = decided_levels(plan, fitted)
    wrong = [
        [sum(count > true for count in passed), len(passed)],
        [sum(count <= true for count in failed), len(failed)],
    ]
    first = first_promise(plan, levels)
    return [found.status, found.count, found.lo, found.hi, found.holds, *first, stops, *wrong]


def cases() -> Iterator[tuple[int, int]]:
    """Each engine several times."""
    return ((drawn, repeat) for drawn in known_truths() for repeat in range(SEARCHES))


def main(processes: int) -> None:
    """Compute what is missing; each is kept at once."""
    every: dict[str, int] = json.loads(TRUTHS.read_text()) if TRUTHS.exists() else {}
    missing = [drawn for drawn in DRAWN if str(drawn) not in every]
    with ProcessPoolExecutor(processes) as pool:
        for drawn, users in zip(missing, pool.map(truth, missing), strict=True):
            every[str(drawn)] = users
            TRUTHS.write_text(json.dumps(every, indent=0) + "\n")
            sys.stdout.write(f"engine {drawn}: {users} users\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 2)
