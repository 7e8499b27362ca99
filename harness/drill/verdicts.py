"""Whether a drill's expectations came true: from its records, or as far as they go while it runs.

An SLO that may take a time to be met again is judged by the requests that begin when the time is
over: "within 30 s" is true when what begins after 30 s meets it.
"""

from __future__ import annotations

from math import nan
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from harness.core.arrays import between, totals_before
from harness.core.states import Purpose, Verdict
from harness.drill.phases import meet
from harness.metrics.evidence import Window
from harness.metrics.metrics import SLO_METRICS
from harness.metrics.numbers import percent_text, slo_limit
from harness.metrics.result import Gate
from harness.records.samples import samples_within
from harness.search.decide import ALPHA, count_in_order, counts_of, decide, p_met, p_missed
from harness.search.replay import RunTokenStats
from harness.units import SECOND, exact_ns, say_ns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.drill.phases import InvalidPhases
    from harness.drill.plan import Drill, Expectation
    from harness.metrics.record_source import RecordSource
    from harness.metrics.result import SloResult
    from harness.metrics.slo import Slo
    from harness.records.record_table import RecordTable
    from harness.records.samples import ServerSample
    from harness.search.decide import SloCounts

NO_PHASES: Final[InvalidPhases] = MappingProxyType({})
# Requests that take as long as the span leave too few independent ones to test anything. But where
# more than half of so many are over the limit, no reader would call that undecided.
GROSS_SHARE: Final = 0.5
GROSS_N: Final = 20
SLOW_SHARE: Final = 0.05  # of refusals may take longer
REFUSED: Final = (429, 503)  # what a server answers that has too much to do
BACK_NS: Final = 2 * SECOND  # how long it has to be back to be called so


def judge_drill(
    drill: Drill,
    began_ns: int,
    seen: RecordSource,
    samples: Sequence[ServerSample],
    *,
    missing: int,
    until_ns: int,
    invalid: InvalidPhases = NO_PHASES,
) -> list[Gate]:
    """A verdict for each expectation. `missing`: requests without a record.

    `until_ns`: the records are complete until then; what lies later is inconclusive, as is what
    depends on a phase that is `invalid`.
    """
    windows = {expected: _window(drill, expected, began_ns) for expected in drill.expectations}
    # before any gate, for they share one alpha
    slo_results = _slo_results(seen, windows, until_ns)
    gates = []
    for expected in drill.expectations:
        window = windows[expected]
        not_judged_yet = _why_not_judged(expected, window, until_ns, invalid)
        if not_judged_yet:
            answer = _Answer(Verdict.inconclusive, not_judged_yet)
        elif expected.kind == "slo":
            answer = _slo(expected, slo_results[expected], seen.table, began_ns, window)
        elif expected.kind == "errors":
            answer = _errors(expected, _begun_in(window, seen.table), window)
        elif expected.kind == "refused":
            answer = _refused(expected, _begun_in(window, seen.table))
        elif expected.kind == "waiting":
            answer = _waiting(expected, samples, began_ns)
        else:
            answer = _lost(expected, missing)
        at_s = nan
        if answer.at_ns >= 0:
            at_s = (answer.at_ns - began_ns) / SECOND
        gates.append(Gate(expected.name, answer.verdict, answer.sentence, at_s))
    return gates


class _Answer(NamedTuple):
    verdict: Verdict
    sentence: str
    at_ns: int = -1  # when that showed; -1: at no instant


def _slo_results(
    seen: RecordSource, windows: Mapping[Expectation, Window], until_ns: int
) -> dict[Expectation, SloResult]:
    """Of the expectations of an SLO that are over; all are decided together."""
    counts = {}
    for expected, window in windows.items():
        if expected.slo is not None and window.end_ns <= until_ns:
            counts[expected] = _counts_by_slo(seen, expected, window)
    # Holm's procedure runs over all of them, so that many expectations are not missed by chance.
    decided = decide(list(counts.values()))
    results = {}
    for expected, level in zip(counts, decided, strict=True):
        results[expected] = level.slos[0]
    return results


def _counts_by_slo(seen: RecordSource, expected: Expectation, window: Window) -> list[SloCounts]:
    """By itself, as spans overlap."""
    slos = [] if expected.slo is None else [expected.slo]
    level = RunTokenStats(seen, [window], slos).levels[window]
    gaps = level.tokens.gaps
    # All requests may fail, as failures are an expectation of their own.
    return counts_of(level.table, window, slos, 1.0, judged=level.judged, gaps=gaps)


def _why_not_judged(
    expected: Expectation, window: Window, until_ns: int, invalid: InvalidPhases
) -> str:
    """Why nothing can be said of it; "": it can."""
    if window.end_ns > until_ns:
        return "not over yet"
    unusable = [phase.name for phase in invalid if meet(phase, expected)]
    if unusable and expected.kind != "lost":  # records are there or not, however late they began
        return not_judged(unusable)
    return ""


def not_judged(phases: Sequence[str]) -> str:
    """Of an expectation that depends on these phases."""
    names = " and ".join(repr(name) for name in phases)
    which = f"phases {names} are" if len(phases) > 1 else f"phase {names} is"
    return f"not judged: {which} invalid"


def _window(drill: Drill, expected: Expectation, began_ns: int) -> Window:
    """The span of an expectation, at the load of its begin."""
    begin_ns = began_ns + expected.begin_ns
    end_ns = began_ns + expected.end_ns
    return Window(
        index=0,
        load=drill.unit.load.exactly(drill.load_at(expected.begin_ns)),
        purpose=Purpose.hold,
        chosen_ns=begin_ns,
        start_ns=begin_ns,
        settled_ns=begin_ns,
        end_ns=end_ns,
        judged_ns=end_ns,
    )


def _begun_in(window: Window, table: RecordTable) -> RecordTable:
    inside = between(table.begun_ns, window.settled_ns, window.end_ns)
    return table.select(inside)


def _slo(
    expected: Expectation, result: SloResult, table: RecordTable, began_ns: int, window: Window
) -> _Answer:
    slo = expected.slo
    assert slo is not None  # noqa: S101 - of this kind
    share = result.n_over / result.n if result.n else 0.0
    verdict = result.verdict
    is_gross = result.n >= GROSS_N and share > GROSS_SHARE
    if verdict == Verdict.inconclusive and is_gross:
        verdict = Verdict.missed
    counted = f"{share:.1%} of {result.n:,} {slo.beyond} {slo_limit(slo)}"
    sentence = f"{counted}, {percent_text(result.allowed)} allowed"
    if verdict == Verdict.inconclusive and result.needs_more:
        sentence += f"; {result.needs_more:,} more requests would decide"
    if expected.since_ns >= expected.begin_ns:
        return _Answer(verdict, sentence, window.end_ns)
    since_ns = began_ns + expected.since_ns
    back_ns = _back(slo, table, since_ns, window.end_ns)
    if verdict == Verdict.met and not 0 <= back_ns <= window.start_ns:
        back_ns = window.start_ns  # a stretch over the limit in what met it as a whole
    if back_ns < 0:
        return _Answer(verdict, f"{sentence}; not back in the time that was watched", window.end_ns)
    after_s = (back_ns - since_ns) / SECOND
    return _Answer(verdict, f"back after {after_s:.1f} s; later {sentence}", back_ns)


def _back(slo: Slo, table: RecordTable, since_ns: int, until_ns: int) -> int:
    """The first instant from which BACK_NS and all that follow meet the SLO; -1: there is none."""
    seen = SLO_METRICS[slo.metric].observe(table)
    begun_ns = table.begun_ns[seen.row]
    inside = np.flatnonzero(between(begun_ns, since_ns, until_ns))
    if not len(inside):
        return -1
    order = np.argsort(begun_ns[inside], kind="stable")
    in_order = inside[order]
    at_ns = begun_ns[in_order]
    over = seen.ns[in_order] > slo.limit_ns
    # of each request, the share over the limit of those that begin with it and up to BACK_NS later
    behind = np.searchsorted(at_ns, at_ns + BACK_NS, "right")
    over_before = totals_before(over)
    n_over = over_before[behind] - over_before[:-1]
    n = behind - np.arange(len(at_ns))
    is_met = n_over <= slo.allowed * n
    # At the end too little follows to call it back; that takes nothing from what was back before.
    is_watched = at_ns + BACK_NS <= until_ns
    missed = np.flatnonzero(is_watched & ~is_met)
    first = int(missed[-1]) + 1 if len(missed) else 0
    if first < len(at_ns) and is_watched[first]:
        return int(at_ns[first])
    return -1


def _errors(expected: Expectation, table: RecordTable, window: Window) -> _Answer:
    *_, counts = counts_of(table, window, [], expected.limit)
    n = int(counts.n)
    failed = int(counts.k)
    sentence = f"{failed / max(n, 1):.1%} of {n:,} requests failed"
    if expected.limit:
        return _Answer(_judged(counts), sentence)
    # none may fail: nothing to test
    if failed:
        return _Answer(Verdict.missed, sentence)
    return _Answer(Verdict.met if n else Verdict.inconclusive, sentence)


def _refused(expected: Expectation, table: RecordTable) -> _Answer:
    refused = table.select(np.isin(table.status, REFUSED))
    took_ns = refused.done_ns - refused.sent_ns
    span_ns = 0
    p95 = "-"
    if len(refused):
        span_ns = int(np.ptp(refused.sent_ns))
        p95 = say_ns(float(np.quantile(took_ns, 1 - SLOW_SHARE)))
    # Refusals under way on average, by Little's law: those that were together count as alike.
    at_once = max(float(took_ns.sum()) / max(span_ns, 1), 1)
    slow = took_ns > expected.limit
    counts = count_in_order("refused", SLOW_SHARE, slow, refused.sent_ns, users=at_once)
    limit = exact_ns(int(expected.limit))
    return _Answer(_judged(counts), f"{len(refused):,} refusals, p95 {p95}, asked for {limit}")


def _judged(counts: SloCounts) -> Verdict:
    # A span has an end and is looked at once, when it is over: all of alpha is for that look
    # (decision 14).
    if not counts.n:
        return Verdict.inconclusive
    if float(p_missed(counts)) <= ALPHA:
        return Verdict.missed
    if float(p_met(counts)) <= ALPHA:
        return Verdict.met
    return Verdict.inconclusive


def _waiting(expected: Expectation, samples: Sequence[ServerSample], began_ns: int) -> _Answer:
    """True from the first sample on that shows so few; false if none does in time."""
    since_ns = began_ns + expected.since_ns
    by_ns = began_ns + expected.end_ns
    if expected.begin_ns > expected.since_ns:
        by_ns = began_ns + max(expected.begin_ns, 0)
    # A replica that is dead shows no figures: then the sum over all is not known.
    in_time = [sample for sample in samples_within(samples, since_ns, by_ns) if sample.waiting >= 0]
    if not in_time:
        return _Answer(Verdict.inconclusive, "the servers did not report how many requests wait")
    for sample in in_time:
        if sample.waiting <= expected.limit:
            after_s = (sample.at_ns - since_ns) / SECOND
            sentence = f"{sample.waiting:.0f} waited after {after_s:.1f} s"
            return _Answer(Verdict.met, sentence, sample.at_ns)
    fewest = min(sample.waiting for sample in in_time)
    return _Answer(Verdict.missed, f"at least {fewest:.0f} waited until then", by_ns)


def _lost(expected: Expectation, missing: int) -> _Answer:
    verdict = Verdict.met if missing <= expected.limit else Verdict.missed
    return _Answer(verdict, f"{missing:,} requests without a record")
