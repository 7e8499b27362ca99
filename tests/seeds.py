"""What the product answers on seeded configurations: `make seeds` writes data/seeds.json.

200 of independent requests, 100 each of users with think time and of sessions, and 50 at three
limits from one search.

The tests compute EVERY-th of these seeds again and judge all 200 by the file, which carries the
hash of the code that it was computed with. `make seeds` computes what has another hash now
(3 minutes on two cores for everything), in as many processes as there are cores.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import simulated_limits
import simulated_users
from simulated_knee import found, known_truths
from simulated_rate import found_rate, known_rates
from simulated_verdict import conclusion, known
from source_hash import source_hash

if TYPE_CHECKING:
    from collections.abc import Callable

STORED = Path(__file__).parent / "data" / "seeds.json"
CASES = 200
EVERY = 9  # four kinds of configuration take turns, and every ninth seed has them all


def knee(seed: int) -> list[Any]:
    """The answer of a search: status, knee, the ends of its interval, what is promised."""
    answer = found(seed)
    return [answer.status, answer.users, answer.lo, answer.hi, answer.holds]


def rate(seed: int) -> list[Any]:
    """As `knee`, for a rate, in steps of 0.01 requests per second."""
    answer = found_rate(seed)
    return [answer.status, answer.users, answer.lo, answer.hi, answer.holds]


def thinking(seed: int) -> list[Any]:
    """The same over users with think time."""
    answer = simulated_users.found("thinking", seed)
    return [answer.status, answer.users, answer.lo, answer.hi, answer.holds]


def talking(seed: int) -> list[Any]:
    """The same over sessions."""
    answer = simulated_users.found("talking", seed)
    return [answer.status, answer.users, answer.lo, answer.hi, answer.holds]


def limits(seed: int) -> list[Any]:
    """The knee and the ends of its band at three limits; None: the levels do not reach it."""
    return list(simulated_limits.found_at_limits(seed))


def verdict(seed: int) -> list[Any]:
    """What is named around the true knee, how surely, and the probability of every cause."""
    answer = conclusion(seed, known()[seed]["knee"])
    causes = {one.name: one.probability for one in answer.causes}
    return [answer.bound_by, answer.confidence, causes]


@dataclass(frozen=True)
class Study:
    """A question that is asked of each seed."""

    answer: Callable[[int], list[Any]]
    truths: Callable[[], dict[int, Any]]

    def known(self, every: int = 1) -> dict[int, Any]:
        """The truths of all 200 seeds, or of a part of these."""
        return dict(list(self.truths().items())[:CASES:every])

    def source(self) -> str:
        """The hash of what its answers depend on."""
        return source_hash("seeds", self.answer.__name__, json.dumps(self.known()))


STUDIES: Final = {
    "knees": Study(knee, known_truths),
    "rates": Study(rate, known_rates),
    "limits": Study(limits, simulated_limits.known),
    "verdicts": Study(verdict, known),
    "thinking": Study(thinking, partial(simulated_users.known_truths, "thinking")),
    "talking": Study(talking, partial(simulated_users.known_truths, "talking")),
}


def stored(name: str) -> dict[int, list[Any]]:
    """The answers of 200 seeds, as `make seeds` has written them."""
    answers = json.loads(STORED.read_text())[name]["answers"]
    return {int(seed): answer for seed, answer in answers.items()}


def stale() -> list[str]:
    """The studies whose stored answers were computed with other code or for other truths."""
    found = json.loads(STORED.read_text())
    kept = {name: found.get(name, {}).get("source") for name in STUDIES}
    return [name for name, study in STUDIES.items() if kept[name] != study.source()]


def main() -> None:
    """Compute what is stale; a line for each study."""
    found = json.loads(STORED.read_text())
    for name in stale():
        study = STUDIES[name]
        with ProcessPoolExecutor() as pool:
            answers = dict(zip(study.known(), pool.map(study.answer, study.known()), strict=True))
        found[name] = {"source": study.source(), "answers": answers}
        text = json.dumps(found).replace("], ", "],\n")  # a line for each seed
        STORED.write_text(text + "\n")
        sys.stdout.write(f"{name}: {len(answers)} seeds\n")
    sys.stdout.write(f"{STORED.name} is of this code; make docs shows it\n")


if __name__ == "__main__":
    main()
