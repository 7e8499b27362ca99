"""The states of a run, a level or a test, as words of result.json."""

from enum import StrEnum
from typing import Final


class Decision(StrEnum):
    """The result of a search's sequential test of a level."""

    passed = "pass"  # every SLO is shown to be met there
    failed = "fail"  # an SLO is shown to be missed there, or too many requests failed
    inconclusive = "inconclusive"  # neither is shown
    invalid = "invalid"  # the level cannot be used: its `reason` says why
    held = "held"  # a level that was given; its SLOs are judged when the run is over


class Status(StrEnum):
    """How a run ended."""

    found = "found"  # a knee: a level below it passed, one above it failed, within 50%
    holds = "holds"  # a level passed, and none failed within 50% above it
    not_reached = "not_reached"  # the level of --max-users passed
    slo_failed_at_min = "slo_failed_at_min"  # the lowest level failed already
    met = "met"  # levels that were given: every SLO of each is met
    missed = "missed"  # levels that were given: an SLO is missed, or too many requests failed
    measured = "measured"  # no SLO was asked for, so nothing was judged
    inconclusive = "inconclusive"  # the evidence is not enough to decide
    target_failed = "target_failed"  # most requests failed, also at a level that had passed
    invalid = "invalid"  # its figures must not be used
    interrupted = "interrupted"  # by Ctrl-C or SIGTERM


class Purpose(StrEnum):
    """Why a level was held."""

    up = "up"  # twice as many users as before, until a level fails
    bisect = "bisect"  # between a level that is too low and one that is too high
    repeat = "repeat"  # for more evidence near the knee
    down = "down"  # after most requests of a level failed
    cause = "cause"  # just above the knee, to see what binds there; the knee does not depend on it
    hold = "hold"  # it was asked for
    sequential = "sequential"  # a batch of requests one at a time, to compare with
    batch = "batch"  # a batch of requests at its concurrency


class StopRule(StrEnum):
    """What ends a level, besides its limit and the budget."""

    lean = "lean"  # a quick estimate is enough to climb on
    decided = "decided"  # the sequential test
    steady = "steady"  # its throughput is known
    time = "time"  # its time only: the level was given
    requests = "requests"  # its number of requests: the level was given
    batch = "batch"  # the last answer to its batch of requests, which users leave after


class Verdict(StrEnum):
    """The verdict of a run on an SLO."""

    met = "met"  # shown: the share over the limit is below the share allowed
    missed = "missed"  # shown: it is above
    inconclusive = "inconclusive"  # neither is shown


WORST_FIRST: Final = (Verdict.missed, Verdict.inconclusive, Verdict.met)
