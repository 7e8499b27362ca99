"""Every state that a run, a level or a test can be in, as words of result.json."""

from enum import StrEnum


class Decision(StrEnum):
    """What the sequential test of a search says of a level."""

    passed = "pass"
    failed = "fail"
    inconclusive = "inconclusive"
    invalid = "invalid"  # the level cannot be used: its `reason` says why
    held = "held"  # a level that was given; its SLOs are judged when the run is over


class Status(StrEnum):
    """How a run ended."""

    found = "found"  # a knee with both ends of its interval shown
    not_reached = "not_reached"  # every level up to --max-users passed
    slo_failed_at_min = "slo_failed_at_min"  # the lowest level failed already
    met = "met"  # levels that were given: every SLO of every level
    missed = "missed"  # one of them at least
    measured = "measured"  # no SLO was asked for, so nothing was judged
    inconclusive = "inconclusive"  # the evidence decides nothing yet
    target_failed = "target_failed"  # most requests failed, also at a level that had passed
    invalid = "invalid"  # figures that must not be used
    interrupted = "interrupted"


class Purpose(StrEnum):
    """Why a level was held."""

    up = "up"
    bisect = "bisect"
    repeat = "repeat"
    down = "down"  # after most requests of a level failed
    hold = "hold"  # it was asked for


class Verdict(StrEnum):
    """What a run says of an SLO."""

    met = "met"
    missed = "missed"
    inconclusive = "inconclusive"
