"""Whether a drill's expectations came true: from its records, or as far as they go while it runs.

An SLO that may take a time to be met again is judged by the requests that begin when the time is
over: "within 30 s" is true when what begins after 30 s meets it.
"""

from __future__ import annotations

from math import nan
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.states import Purpose, Verdict
from harness.drill.phases import meet
from harness.metrics.evidence import Window
from harness.metrics.metrics import SLO_METRICS
from harness.metrics.result import Gate
from harness.search.decide import ALPHA, count_in_order, counts_of, decide, p_met, p_missed
from harness.search.replay import RunTokenStats
from harness.units import SECOND, exact_ns, say_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    windows = {e: _window(drill, e, began_ns) for e in drill.expectations}
    asked = [e for e, w in windows.items() if e.slo is not None and w.end_ns <= until_ns]
    levels = []
    for one in asked:  # spans overlap, so each is counted by itself
        window, slos = windows[one], [slo for slo in (one.slo,) if slo]
        level = RunTokenStats(seen, [window], slos).levels[window]
        gaps = level.tokens.gaps
        levels.append(counts_of(level.table, window, slos, 1.0, judged=level.judged, gaps=gaps))
    decided = {e: level.slos[0] for e, level in zip(asked, decide(levels), strict=True)}
    verdicts = []
    for one in drill.expectations:
        window, at_ns = windows[one], -1
        table = seen.table
        table = table.select(
            (table.begun_ns >= window.settled_ns) & (table.begun_ns <= window.end_ns)
        )
        unusable = [phase.name for phase in invalid if meet(phase, one)]
        if window.end_ns > until_ns:
            verdict, sentence = Verdict.inconclusive, "not over yet"
        elif unusable and one.kind != "lost":  # records are there or not, however late they began
            verdict, sentence = Verdict.inconclusive, not_judged(unusable)
        elif one.kind == "slo":
            verdict, at_ns, sentence = _slo(one, decided[one], seen.table, began_ns, window)
        elif one.kind == "errors":
            verdict, sentence = _errors(one, table, window)
        elif one.kind == "refused":
            verdict, sentence = _refused(one, table)
        elif one.kind == "waiting":
            verdict, at_ns, sentence = _waiting(one, samples, began_ns)
        else:
            verdict = Verdict.met if missing <= one.limit else Verdict.missed
            sentence = f"{missing:,} requests without a record"
        at_s = (at_ns - began_ns) / SECOND if at_ns >= 0 else nan
        verdicts.append(Gate(one.name, verdict, sentence, at_s))
    return verdicts


def not_judged(phases: Sequence[str]) -> str:
    """Of an expectation that depends on these phases."""
    which = " and ".join(repr(name) for name in phases)
    are = "phases {} are" if len(phases) > 1 else "phase {} is"
    return f"not judged: {are.format(which)} invalid"


def _window(drill: Drill, expected: Expectation, began_ns: int) -> Window:
    """The span of an expectation, at the load of its begin."""
    load = drill.load_at(expected.begin_ns)
    users, rate = (0, load) if drill.is_rate else (round(load), 0.0)
    begin_ns, end_ns = began_ns + expected.begin_ns, began_ns + expected.end_ns
    return Window(0, users, Purpose.hold, begin_ns, begin_ns, begin_ns, end_ns, end_ns, rate)


def _slo(
    expected: Expectation, found: SloResult, table: RecordTable, began_ns: int, window: Window
) -> tuple[Verdict, int, str]:
    slo = expected.slo
    assert slo is not None  # noqa: S101 - of this kind
    share = found.n_over / found.n if found.n else 0.0
    verdict = found.verdict
    if verdict == Verdict.inconclusive and found.n >= GROSS_N and share > GROSS_SHARE:
        verdict = Verdict.missed
    sentence = f"{share:.1%} of {found.n:,} {slo.beyond} {slo} ({found.allowed:.1%} allowed)"
    if verdict == Verdict.inconclusive and found.needs_more:
        sentence += f"; {found.needs_more:,} more like them would decide"
    if expected.since_ns >= expected.begin_ns:
        return verdict, window.end_ns, sentence
    back_ns = _back(slo, table, began_ns + expected.since_ns, window.end_ns)
    if verdict == Verdict.met:  # a stretch over the limit in what met it as a whole
        back_ns = min(back_ns if back_ns >= 0 else window.start_ns, window.start_ns)
    if back_ns < 0:
        return verdict, window.end_ns, f"{sentence}; not back in the time that was watched"
    after = (back_ns - began_ns - expected.since_ns) / SECOND
    return verdict, back_ns, f"back after {after:.1f} s; later {sentence}"


def _back(slo: Slo, table: RecordTable, since_ns: int, until_ns: int) -> int:
    """The first instant from which BACK_NS and all that follow meet the SLO; -1: there is none."""
    seen = SLO_METRICS[slo.metric].observe(table)
    begun = table.begun_ns[seen.row]
    inside = (begun >= since_ns) & (begun <= until_ns)
    order = np.argsort(begun[inside], kind="stable")
    at, over = begun[inside][order], (seen.ns > slo.limit_ns)[inside][order]
    if not len(at):
        return -1
    # of each request, the share over the limit from its begin to BACK_NS later
    ends, whole = np.searchsorted(at, at + BACK_NS, "right"), at + BACK_NS <= until_ns
    sums = np.concatenate([[0], np.cumsum(over)])
    good = sums[ends] - sums[:-1] <= slo.allowed * (ends - np.arange(len(at)))
    bad = np.flatnonzero(whole & ~good)
    first = int(bad[-1]) + 1 if len(bad) else 0
    return int(at[first]) if first < len(at) and whole[first] else -1


def _errors(expected: Expectation, table: RecordTable, window: Window) -> tuple[Verdict, str]:
    failed = counts_of(table, window, [], expected.limit)[-1]
    n, bad = int(failed.n), int(failed.k)
    share = f"{bad / max(n, 1):.1%} of {n:,} requests failed"
    if not expected.limit:
        return (Verdict.missed if bad else Verdict.met if n else Verdict.inconclusive), share
    return _judged(failed), share


def _refused(expected: Expectation, table: RecordTable) -> tuple[Verdict, str]:
    refused = table.select(np.isin(table.status, REFUSED))
    took_ns = refused.done_ns - refused.sent_ns
    slow, span_ns = took_ns > expected.limit, int(np.ptp(refused.sent_ns)) if len(refused) else 0
    users = max(float(took_ns.sum()) / max(span_ns, 1), 1)  # refusals under way at once
    p95 = say_ns(float(np.quantile(took_ns, 1 - SLOW_SHARE))) if len(refused) else "-"
    counts = count_in_order("refused", SLOW_SHARE, slow, refused.sent_ns, users=users)
    said = f"{len(refused):,} refusals, p95 {p95}, asked for {exact_ns(int(expected.limit))}"
    return _judged(counts), said


def _judged(counts: SloCounts) -> Verdict:
    if counts.n and float(p_missed(counts)) <= ALPHA:
        return Verdict.missed
    return Verdict.met if counts.n and float(p_met(counts)) <= ALPHA else Verdict.inconclusive


def _waiting(
    expected: Expectation, samples: Sequence[ServerSample], began_ns: int
) -> tuple[Verdict, int, str]:
    """True from the first sample on that shows so few; false if none does in time."""
    since_ns, by_ns = began_ns + expected.since_ns, began_ns + max(expected.begin_ns, 0)
    by_ns = by_ns if expected.begin_ns > expected.since_ns else began_ns + expected.end_ns
    seen = [s for s in samples if since_ns <= s.at_ns <= by_ns and s.waiting >= 0]
    first = next((s for s in seen if s.waiting <= expected.limit), None)
    if first is not None:
        after = (first.at_ns - since_ns) / SECOND
        return Verdict.met, first.at_ns, f"{first.waiting:.0f} waited after {after:.1f} s"
    if not seen:
        return Verdict.inconclusive, -1, "the servers did not say how many wait"
    least = min(s.waiting for s in seen)
    return Verdict.missed, by_ns, f"{least:.0f} waited at least, until then"
