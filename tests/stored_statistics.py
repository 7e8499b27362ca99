"""Statistics over seeds in simulated time: `make statistics` computes them, the tests read them.

A statistic is a function of one case, asked of many. data/statistics/NAME.json has the answers,
with a hash of the code and of the cases that they come from. The tests judge all answers by the
file, compute a few again, and fail where the hash is not that of today's code.

    make statistics [NAMES="knees rates"]

computes what has no answer of today's code, on two cores, and says a line for each statistic. Each
answer is written at once, so that a run that was stopped goes on where it was. To have all of one
computed again, remove its file.

    make statistics CHECK=yes [NAMES="duel"]

is for a change that should change no answer, such as a new column of a table: a tenth of the cases,
drawn anew for each version of the code, are computed again. If all are equal to the last digit, the
file says that its answers were checked on this code, and on how many cases; else it stays as it is.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import simulated_apart
import simulated_bounds
import simulated_comparison
import simulated_decisions
import simulated_drill
import simulated_gaps
import simulated_intervals
import simulated_knee
import simulated_limits
import simulated_rate
import simulated_recovery
import simulated_sides
import simulated_sizing
import simulated_truths
import simulated_users
import simulated_verdict
import simulated_waves
import split_cases
from source_hash import source_hash

from lab import duel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

STORED: Final = Path(__file__).parent / "data" / "statistics"
PROCESSES: Final = 2
GARBAGE: Final = 500_000  # objects: the default would look for cycles thousands of times
CHECK: Final = "--check"
CHECKED_SHARE: Final = 0.1
LEAST_CHECKED: Final = 5

Case = tuple[Any, ...]  # the arguments of an answer


class Statistic(NamedTuple):
    """A question that is asked of each case."""

    answer: Callable[..., Any]  # pure; what JSON can hold
    cases: Callable[[], Iterable[Case]]
    live: int  # so many of them, evenly spread, are computed again in each test run
    files: tuple[Path, ...] = ()  # that the answers depend on, too


DRILLS: Final = tuple(simulated_drill.DRILLS)


class Answer(NamedTuple):
    """What was computed of a case, and the seconds of CPU time that it took."""

    name: str
    key: str
    found: Any
    took_s: float


# What takes long and cannot be divided comes first, so that both cores are busy to the end.
STATISTICS: Final = {
    "recovery_boundary": Statistic(
        simulated_recovery.boundary, simulated_recovery.boundary_cases, 0
    ),
    "recovery_knees": Statistic(simulated_recovery.knee, simulated_recovery.knee_cases, 0),
    "recovery": Statistic(simulated_recovery.repeat, simulated_recovery.repeat_cases, 1),
    "recovery_at_once": Statistic(simulated_recovery.at_once, simulated_recovery.at_once_cases, 1),
    "drill_truths": Statistic(simulated_drill.counted, simulated_drill.truth_cases, 1, DRILLS),
    "drills": Statistic(simulated_drill.judged, simulated_drill.cases, 3, DRILLS),
    "knees": Statistic(simulated_knee.answer, simulated_knee.cases, 2),
    "budgets": Statistic(simulated_knee.with_budget, simulated_knee.budget_cases, 1),
    "first_command": Statistic(simulated_knee.first_command, simulated_knee.first_cases, 2),
    "waves": Statistic(simulated_waves.answer, simulated_waves.cases, 2),
    "bounds": Statistic(simulated_bounds.answer, simulated_bounds.cases, 2),
    "limits": Statistic(simulated_limits.found_at_limits, simulated_limits.cases, 1),
    "thinking": Statistic(simulated_users.answer_thinking, simulated_users.thinking_cases, 1),
    "talking": Statistic(simulated_users.answer_talking, simulated_users.talking_cases, 1),
    "rates": Statistic(simulated_rate.answer, simulated_rate.cases, 1),
    "backlogs": Statistic(simulated_rate.backlog, simulated_rate.backlog_cases, 4),
    "verdicts": Statistic(simulated_verdict.answer, simulated_verdict.cases, 4),
    "splits": Statistic(split_cases.checked, split_cases.cases, 8),
    "pairs": Statistic(simulated_comparison.pair, simulated_comparison.cases, 2),
    "sides": Statistic(simulated_sides.decisions, simulated_sides.cases, 2),
    "decisions": Statistic(simulated_decisions.wrong_verdicts, simulated_decisions.cases, 2),
    "intervals": Statistic(simulated_intervals.covered, simulated_intervals.cases, 1),
    "gaps": Statistic(simulated_gaps.p_values, simulated_gaps.cases, 0),
    "apart": Statistic(simulated_apart.answer, simulated_apart.cases, 0),
    "apart_gain": Statistic(simulated_apart.gain_answer, simulated_apart.gain_cases, 1),
    "fleets": Statistic(simulated_sizing.fleet_ms, simulated_sizing.fleet_cases, 1),
    "ramps": Statistic(simulated_sizing.ramp, simulated_sizing.ramp_cases, 0),
    "truths": Statistic(simulated_truths.truth, simulated_truths.cases, 2),
    "duel": Statistic(duel.answer, simulated_knee.duel_cases, 0),
    "duel_continuous": Statistic(duel.continuous_answer, simulated_knee.duel_cases, 1),
}


def cases(name: str) -> dict[str, Case]:
    """Those of a statistic, by their keys in the file."""
    return {" ".join(map(str, case)): case for case in STATISTICS[name].cases()}


def source(name: str) -> str:
    """The hash of the code, the cases and the files that the answers depend on."""
    answer, _, _, files = STATISTICS[name]
    data = [*cases(name), *(path.read_text() for path in files)]
    return source_hash(answer.__module__, answer.__name__, json.dumps(data))


def read(name: str) -> dict[str, Any]:
    """What is stored: `source`, `answers` by key, and `checked` where other code gave the same."""
    path = STORED / f"{name}.json"
    return dict(json.loads(path.read_text())) if path.exists() else {"source": "", "answers": {}}


def stored(name: str) -> dict[Any, Any]:
    """The answer of each case; a case with one argument is that argument."""
    answers = read(name)["answers"]
    return {
        case[0] if len(case) == 1 else case: answers[key]
        for key, case in cases(name).items()
        if key in answers
    }


def current(name: str) -> dict[str, Any]:
    """The stored answers, none where other code has given them and nobody checked them on this."""
    kept = read(name)
    sources = (kept["source"], kept.get("checked", {}).get("source"))
    return kept["answers"] if source(name) in sources else {}


def stale(name: str) -> list[str]:
    """The keys of the cases that have no answer of this code."""
    return sorted(cases(name).keys() - current(name).keys())


def again(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A few answers, computed now and as they are stored."""
    statistic, kept, every = STATISTICS[name], read(name)["answers"], cases(name)
    step = len(every) / statistic.live
    keys = [list(every)[round(step * place)] for place in range(statistic.live)]
    now = {key: statistic.answer(*every[key]) for key in keys}
    return json.loads(json.dumps(now)), {key: kept.get(key) for key in keys}


def timed(name: str, key: str) -> Answer:
    """The answer of a case."""
    began = time.process_time()
    answer = STATISTICS[name].answer(*cases(name)[key])
    return Answer(name, key, answer, time.process_time() - began)


def in_processes(asked: list[tuple[str, str]]) -> Iterator[Answer]:
    """The answer of each (statistic, key), as they come."""
    pool = ProcessPoolExecutor(PROCESSES, initializer=gc.set_threshold, initargs=(GARBAGE,))
    with pool:
        for future in as_completed([pool.submit(timed, *one) for one in asked]):
            yield future.result()


def write(
    name: str, made_by: str, answers: dict[str, Any], checked: dict[str, Any] | None = None
) -> None:
    """A line for each case, in their order; `made_by`: what `source` says."""
    lines = [
        f"{json.dumps(key)}: {json.dumps(answers[key])}" for key in cases(name) if key in answers
    ]
    head = {"source": made_by} | ({"checked": checked} if checked else {})
    text = json.dumps(head)[:-1] + ', "answers": {\n' + ",\n".join(lines) + "\n}}\n"
    path = STORED / f"{name}.json"
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def compute(
    names: list[str], answer: Callable[[list[tuple[str, str]]], Iterable[Answer]] = in_processes
) -> None:
    """What is stale of these; a line for each."""
    sources = {name: source(name) for name in names}
    answers = {name: dict(current(name)) for name in names}
    wanted = {name: stale(name) for name in names}
    for name, keys in wanted.items():
        if not keys:
            say(f"{name}: of this code")
    left = {name: len(keys) for name, keys in wanted.items()}
    cpu_s: defaultdict[str, float] = defaultdict(float)
    asked = [(name, key) for name, keys in wanted.items() for key in keys]
    for name, key, found, took_s in answer(asked):
        answers[name][key] = found
        write(name, sources[name], answers[name])
        cpu_s[name] += took_s
        left[name] -= 1
        if left[name] == 0:
            say(f"{name}: {len(wanted[name])} cases, {cpu_s[name]:.0f} s of CPU time")


def check(
    names: list[str], answer: Callable[[list[tuple[str, str]]], Iterable[Answer]] = in_processes
) -> bool:
    """Compute a tenth of what is stale again; whether all of it is as it is stored."""
    drawn = {name: drawn_to_check(name) for name in names if stale(name)}
    kept = {name: read(name) for name in drawn}
    asked = [(name, key) for name, keys in drawn.items() for key in keys]
    differ: defaultdict[str, list[str]] = defaultdict(list)
    left = {name: len(keys) for name, keys in drawn.items()}
    cpu_s: defaultdict[str, float] = defaultdict(float)
    for name, key, found, took_s in answer(asked):
        if json.loads(json.dumps(found)) != kept[name]["answers"].get(key):
            differ[name].append(key)
        cpu_s[name] += took_s
        left[name] -= 1
        if left[name] > 0:
            continue
        told = f"{len(drawn[name])} of {len(cases(name))} cases, {cpu_s[name]:.0f} s of CPU time"
        if name in differ:
            say(f"{name}: {', '.join(differ[name])} differ ({told}); make statistics NAMES={name}")
            continue
        checked = {"source": source(name), "answers": len(drawn[name])}
        write(name, kept[name]["source"], kept[name]["answers"], checked)
        say(f"{name}: as stored ({told})")
    return not differ


def drawn_to_check(name: str) -> list[str]:
    """Other cases for each version of the code, so that many small changes meet all of them."""
    keys = list(cases(name))
    n_checked = max(round(CHECKED_SHARE * len(keys)), LEAST_CHECKED)
    draw = random.Random(source(name))  # noqa: S311 - no secret
    return draw.sample(keys, min(n_checked, len(keys)))


def say(line: str) -> None:
    """At once, also through a pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(words: list[str]) -> None:
    """Compute, or check, what is stale of these statistics, of all if none is named."""
    names = [word for word in words if word != CHECK]
    unknown = sorted(set(names) - STATISTICS.keys())
    if unknown:
        sys.exit(
            f"NAMES has {', '.join(unknown)}: expected some of {', '.join(STATISTICS)}; "
            "try make statistics NAMES=knees."
        )
    STORED.mkdir(exist_ok=True)
    names = names or list(STATISTICS)
    if CHECK in words:
        sys.exit(0 if check(names) else 1)
    compute(names)
    say("The answers are of this code; make docs shows them")


if __name__ == "__main__":
    main(sys.argv[1:])
