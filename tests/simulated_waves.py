"""True knees of engines whose requests come in waves (lab/wave_engines.py), in simulated time.

`PYTHONPATH=. python tests/simulated_waves.py [SECONDS] [PROCESSES]` adds true knees to
data/true_knees_of_waves.json until the time is up or 200 are in range (two hours on two cores).
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from harness.units import SECOND
from lab.reference_knee import LONGEST_NS, true_knee
from lab.wave_engines import wave_configuration

TRUTHS = Path(__file__).parent / "data" / "true_knees_of_waves.json"
SEEDS: Final = range(400)
LEAST, MOST = 4, 400  # knees that the default search range can see and halve
SHORT_NS: Final = 120 * SECOND
CASES: Final = 200


def truth(seed: int) -> int:
    """The true knee of one seed, from long runs on other draws."""
    case = wave_configuration(seed)
    users = 0
    for longest_ns in (SHORT_NS, LONGEST_NS):  # the first says whether it is in range
        known = true_knee(case.engine, case.traffic, case.slos, longest_ns=longest_ns)
        users = known.users
        if not LEAST <= users <= MOST:
            break
    return users


def known_truths() -> dict[int, int]:
    """Seed -> true knee, of the first 200 in range."""
    every = json.loads(TRUTHS.read_text()) if TRUTHS.exists() else {}
    seen = [(int(seed), users) for seed, users in every.items() if LEAST <= users <= MOST]
    return dict(seen[:CASES])


def main(seconds: int, processes: int) -> None:
    """Compute what is missing, a seed for each process at a time."""
    until = time.monotonic() + seconds
    every: dict[str, int] = json.loads(TRUTHS.read_text()) if TRUTHS.exists() else {}
    with ProcessPoolExecutor(processes) as pool:
        while len(known_truths()) < CASES and time.monotonic() < until:
            some = [seed for seed in SEEDS if str(seed) not in every][:processes]
            if not some:
                break
            every.update(zip(map(str, some), pool.map(truth, some), strict=True))
            TRUTHS.write_text(json.dumps(every, indent=0) + "\n")
    sys.stdout.write(f"{TRUTHS}: {len(known_truths())} of {len(every)} engines in range\n")


if __name__ == "__main__":
    given = sys.argv[1:]
    seconds = int(given[0]) if given else 3600
    processes = int(given[1]) if given[1:] else 2
    main(seconds, processes)
