"""The answer in plain words: a headline, then the bottleneck, its figures and the capacity.

Only what was measured is promised: the headline of a knee names the level that passed, not the
best estimate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Final

from harness.core.states import WORST_FIRST, Decision, Purpose, Status, Verdict
from harness.diagnosis.server_window import replica_figures
from harness.diagnosis.triage import SYMPTOMS, TRIAGE_QUANTILE, p95_limits_ns
from harness.metrics.metrics import HEADLINES, SLO_METRICS, failed_requests
from harness.metrics.numbers import (
    Quantity,
    as_sentence,
    count_of,
    format_number,
    slo_bound,
    slo_limit,
    slo_name,
    statistic_name,
)
from harness.metrics.result import CONCURRENT, Level, SloResult
from harness.metrics.slo import Slo
from harness.records.record_table import OK
from harness.records.samples import samples_within
from harness.report.delivered import delivery_sentences
from harness.report.drill_answer import drill_sentences
from harness.report.remarks import idle_gpu_sentence, sweet_spot_sentence
from harness.report.report_data import ReportData, as_mapping, knee_figures
from harness.report.small_print import loop_text
from harness.report.sweep import findings, rules_of_thumb
from harness.report.tables import tool_comparisons, tools_as_text
from harness.units import SECOND

MIN_SILENT: Final = 3  # requests that failed after the last good one: fewer may be chance


@dataclass(frozen=True, slots=True)
class Answer:
    """`tone`: good, bad or unsure; it sets the color of the badge."""

    badge: str
    tone: str
    headline: str
    sentences: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)  # lines for the terminal only
    simulated: str = ""  # what was simulated; "": a real server was measured

    @property
    def text(self) -> str:
        first = [f"Simulated: {self.simulated}."] if self.simulated else []
        return "\n".join([*first, self.headline, *self.sentences, *self.tables])


def build_answer(facts: ReportData) -> Answer:
    found, label = STATUSES[facts.status](facts), facts.result.target.label
    gates = [gate.sentence for gate in facts.result.gates if facts.result.command != "drill"]
    about = loop_text(facts.config).removeprefix("open: ")
    loop = [as_sentence(f"this is an open loop: {about}")] * facts.is_rate
    return replace(
        found,
        sentences=[
            *left_out_sentences(facts),
            *gates,
            *facts.asked_later,
            *_beside_the_knee(facts),
            *found.sentences,
            *at_once_sentences(facts),
            *silent_sentences(facts),
            *delivery_sentences(facts),
            *replica_sentences(facts),
            *loop,
            *filter(None, [idle_gpu_sentence(facts)]),
        ],
        tables=tools_as_text(tool_comparisons(facts)),
        simulated=f"{label.removeprefix('simulated ')}, no real server" if label else "",
    )


def _beside_the_knee(facts: ReportData) -> list[str]:
    """The sweet spot of a search, whose headline is the knee; a sweep has it in `findings`."""
    if facts.result.command != "knee" or facts.status == Status.invalid:
        return []
    return list(filter(None, [sweet_spot_sentence(facts)]))


def _found(facts: ReportData) -> Answer:
    knee = facts.knee
    lo, hi = knee.ci95
    interval = f"95% interval {lo:,} to {hi:,}" if lo is not None and hi is not None else ""
    if not facts.slos:
        headline = (
            f"Throughput divided by latency peaks at {facts.level_text(knee.estimate or 0)} "
            f"({interval}): beyond that, each additional request adds more latency than throughput."
        )
        return Answer("power knee found", "good", headline, explanation(facts))
    headline = (
        f"Holds {facts.level_text(knee.holds or 0)}: {_kept(facts)}. Fails by {knee.fails_by:,}; "
        f"best estimate {knee.estimate:,} ({interval})."
    )
    return Answer("knee found", "good", headline, [*explanation(facts), *_cost(facts)])


def _cost(facts: ReportData) -> list[str]:
    """What the search took, and its precision where that was missed."""
    knee, levels = facts.knee, [x for x in facts.result.levels if x.purpose != Purpose.hold]
    seconds = sum(level.judged_ns - level.chosen_ns for level in levels) / SECOND
    requests = sum(level.all.ttft_ms.n for level in levels)
    took = f"The search took {seconds:,.0f} s of load and {count_of(requests, 'request')}"
    wide, estimate = (knee.ci95[1] or 0) - (knee.ci95[0] or 0), knee.estimate or 1
    if wide > max(0 if facts.is_rate else 1, knee.precision * estimate):
        took += f"; the interval is {wide / estimate:.0%} wide, not {knee.precision:.2%}"
    return [f"{took}."]


def _kept(facts: ReportData) -> str:
    """`p95 TTFT 450 ms (400 to 480) under 500 ms`, over all holds of the level that passed."""
    level, pooled = facts.result.at_knee, knee_figures(facts)
    parts = []
    for slo in facts.slos:
        name = slo_name(slo)
        figure = pooled.get(name)
        shown = figure if figure and figure.known else _observed(level, slo)
        parts.append(f"{name} {shown} {slo_bound(slo)}")
    return " and ".join(parts)


def _observed(level: Level | None, slo: Slo) -> str:
    if level is None:
        return str(Quantity())
    seen = getattr(level, SLO_METRICS[slo.metric].field)
    value, lo, hi = seen.at(slo.statistic)
    return str(Quantity(value, lo, hi, slo.unit, slo.limit))


def _slo_failed_at_min(facts: ReportData) -> Answer:
    first = min(facts.used, key=lambda level: level.load, default=None)
    if first is None or not facts.slos:
        return Answer("SLO missed at the lowest level", "bad", "The lowest level already fails.")
    missed = [s for s in facts.slos if first.over_share.get(s.name, 0) > s.allowed]
    failures = " and ".join(
        f"{slo_name(slo)} is {_observed(first, slo)} at {facts.level_text(first.load)}, "
        f"{slo.beyond} the {slo_limit(slo)} limit"
        for slo in missed or facts.slos[:1]
    )
    headline = f"No level passes: {failures}."
    return Answer("SLO missed at the lowest level", "bad", headline, explanation(facts))


def _not_reached(facts: ReportData) -> Answer:
    highest = facts.knee.holds or max((level.load for level in facts.used), default=0)
    headline = (
        f"Holds at least {facts.level_text(highest)}, the highest level tried: {_kept(facts)}."
        if facts.slos
        else f"Throughput divided by latency still rises at {facts.level_text(highest)}, the "
        "highest level tried."
    )
    next_step = f"Raise {_most(facts)} to find the knee."
    return Answer("knee not reached", "good", headline, [*explanation(facts), next_step])


def _most(facts: ReportData) -> str:
    return "--max-rate" if facts.is_rate else "--max-users"


def _inconclusive(facts: ReportData) -> Answer:
    if not facts.searched:
        return _held(facts)
    knee = facts.knee
    headline = f"Inconclusive: the measurements do not determine the knee{_bracket(facts)}."
    if knee.estimate is not None and facts.slos:
        headline += (
            f" Best estimate {knee.estimate:,} (95% interval {knee.ci95[0]:,} to {knee.ci95[1]:,})."
        )
    lacking = []
    if not knee.holds:
        lacking.append("a level that clearly passes")
    elif knee.ci95[1] is not None:
        lacking.append("a level closer to the knee that clearly passes")
    if knee.fails_by is None:
        lacking.append(f"a level that clearly fails (raise {_most(facts)})")
    how = "Try a longer --budget."
    if facts.asked_later:
        how = "To measure it, run `knee` for it."
    elif facts.left_out:
        how = "A longer --budget helps once the levels that were left out can be measured."
    next_step = f"Still needed: {' and '.join(lacking)}. {how}"
    return Answer("inconclusive", "unsure", headline, [*explanation(facts), next_step])


def _target_failed(facts: ReportData) -> Answer:
    why = as_sentence(facts.result.invalid_reason)
    *before, last = [s.load for s in facts.used if s.decision == Decision.failed] or [0]
    then = f", and again at {last:,}" if before else ""
    where = f" at {facts.level_text([*before, last][-2:][0])}" if last else ""
    headline = f"The server failed under load{where}{then}."
    return Answer("server failed", "bad", headline, [why, *explanation(facts, capacity=False)])


def _invalid(facts: ReportData) -> Answer:
    headline = "Result invalid: do not use these figures."
    why = [as_sentence(facts.result.invalid_reason)] if facts.result.invalid_reason else []
    return Answer("invalid", "bad", headline, why)


def left_out_sentences(facts: ReportData) -> list[str]:
    """Which levels the answer does without, and why; [] if it needs none or has none."""
    lost, n = facts.left_out, len(facts.levels)
    # a drill names its phases, and says so first
    if not lost or facts.status == Status.invalid or facts.result.command == "drill":
        return []
    where, why = facts.result.loads_text(*lost), lost[0].reason.rstrip(".")
    if len(lost) == 1:
        return [f"Left out: the level of {where}, because {why}."]
    lost_of = f"{len(lost):,} of {n:,} levels ({where})"
    return [f"Left out: {lost_of}, the first because {why}. The table gives the reason of each."]


def _interrupted(facts: ReportData) -> Answer:
    if not facts.levels and not len(facts.run.table):
        return Answer("interrupted", "unsure", "Interrupted before anything was measured.")
    seen, levels = count_of(len(facts.run.table), "request"), count_of(len(facts.levels), "level")
    headline = f"Interrupted: {seen} and {levels} were measured{_bracket(facts)}."
    return Answer("interrupted", "unsure", headline, explanation(facts, capacity=False))


def _held(facts: ReportData) -> Answer:
    """Given levels: each SLO with its verdict, then the figures."""
    if facts.result.command == "drill" and facts.result.gates:
        badge, tone, (headline, *told) = drill_sentences(facts)
        return Answer(badge, tone, headline, told + [_figures(facts, one) for one in facts.used])
    words = {
        Status.met: ("SLO met", "good"),
        Status.missed: ("SLO missed", "bad"),
        Status.measured: ("measured", "good"),
    }
    badge, tone = words.get(facts.status, ("inconclusive", "unsure"))
    error = facts.result.commonest_error
    judged = [one for one in (facts.result.errors, *facts.result.slos) if one is not None]
    # The headline is the verdict that decided.
    judged.sort(key=lambda one: WORST_FIRST.index(one.verdict))
    verdicts = [slo_sentence(one, error, facts.result.unit) for one in judged]
    figures = rules_of_thumb(facts)
    by_level = [] if figures else [_figures(facts, level) for level in facts.used]
    unheld = [as_sentence(facts.result.unheld)] if facts.result.unheld else []
    figures += findings(facts) + by_level + unheld
    if not verdicts:
        return Answer(badge, tone, figures[0] if figures else "Nothing was measured.", figures[1:])
    return Answer(badge, tone, verdicts[0], [*verdicts[1:], *figures, *triage_sentences(facts)])


FEWEST_SENT: Final = 2  # in a window: quantiles of a single request say nothing


def _figures(facts: ReportData, level: Level) -> str:
    """`4 concurrent requests: p95 TTFT 19 ms (18 to 20), p95 ITL 10 ms (10 to 11), 379 ...`."""
    n = sum(level.outcomes.values())
    if n < FEWEST_SENT:
        sent = f"{count_of(n, 'request')} was" if n else "no request was"
        return (
            f"{facts.level_text(level.load)}: too short: {sent} sent in "
            f"{format_number(level.seconds)} s."
        )
    shown = [
        f"p95 {name} {Quantity.of(level.latency(key), 'p95', facts.limit_ms(key))}"
        for key, name in HEADLINES.items()
    ]
    usual = [f"{key}_p95" for key in HEADLINES]
    shown += [f"{slo_name(x)} {_observed(level, x)}" for x in facts.slos if x.name not in usual]
    tokens = Quantity(level.output_tokens_per_s, unit="output tokens/s")
    if level.rate_per_s:
        shown.insert(0, f"{format_number(level.in_flight)} in flight")
    more = "".join(f" {as_sentence(text)}" for text in (level.unstable, level.drift) if text)
    return f"{facts.level_text(level.load)}: {', '.join(shown)}, {tokens}.{more}"


def slo_sentence(one: SloResult, commonest_error: str = "", unit: str = CONCURRENT) -> str:
    """`ttft_p95=20ms missed at 4 concurrent requests: 4 of 19 over ttft_p95=20ms (21.0%; ...).`.

    Of failures: `SLO missed: 8 of 12 requests failed at 4 ... (67.0%; 1.0% allowed), mostly: ...`.
    """
    at = f" at {count_of(one.users, unit)}" if one.users else ""
    at = f" at {one.rate_per_s:,g} requests/s" if one.rate_per_s else at
    share = float(f"{one.n_over / one.n:.2g}") if one.n else 0
    shares = f"({share:.1%}; {one.allowed:.1%} allowed)"
    detail = f"no observations for {one.slo}"
    if one.slo.startswith("max_errors"):
        mostly = f", most often with {commonest_error!r}" if commonest_error else ""
        return f"SLO missed: {one.n_over:,.0f} of {one.n:,} requests failed{at} {shares}{mostly}."
    if one.n:
        beyond = Slo.parse(one.slo).beyond
        detail = f"{one.n_over:,.0f} of {one.n:,} {beyond} {one.slo} {shares}"
    elif not isnan(one.observed):  # a search decides by its sequential test
        slo = Slo.parse(one.slo)
        detail = str(Quantity(one.observed, unit=slo.unit, limit=slo.limit))
    line = f"{one.slo} {one.verdict}{at}: {detail}"
    if one.verdict == Verdict.inconclusive and one.needs_more:
        line += f"; about {count_of(one.needs_more, 'more request')} would decide it"
    elif one.verdict == Verdict.inconclusive and not isnan(one.observed) and not one.n:
        line += "; a longer --budget would decide it"
    return line + "."


def _bracket(facts: ReportData) -> str:
    """`: passed at 48, failed at 56`, as far as levels were decided."""
    passed = max((s.load for s in facts.used if s.decision == Decision.passed), default=0)
    above = [s.load for s in facts.used if s.decision == Decision.failed]
    failed = min(above, default=0)
    parts = [f"passed at {passed:,}"] * bool(passed) + [f"failed at {failed:,}"] * bool(failed)
    return f": {', '.join(parts)}" if parts else ""


def explanation(facts: ReportData, *, capacity: bool = True) -> list[str]:
    """The bottleneck, the figures at the knee, and the number of replicas."""
    lines = []
    if (found := facts.result.bottleneck) is not None and found.sentence:
        sure = f" (confidence {found.confidence:.2g})" if found.confidence > 0 else ""
        lines.append(f"Bottleneck: {found.sentence.rstrip('.')}{sure}.")
        if found.try_next:
            lines.append(f"Try next: {found.try_next[0]}.")
    lines += [facts.result.proof.sentence] if facts.result.proof else []
    lines += triage_sentences(facts)
    lines += knee_sentences(facts)
    if capacity:
        lines += _replicas(facts)
    return lines


def knee_sentences(facts: ReportData) -> list[str]:
    """`At 34: p95 TTFT 434 ms (397 to 459), ...`; empty when nothing was measured."""
    figures = [figure for figure in knee_figures(facts).items() if figure[1].known]
    if not figures:
        return []
    parts = [f"{name} {figure}" if figure.unit == "ms" else str(figure) for name, figure in figures]
    usual = [f"{key}_p95" for key in HEADLINES]
    others = [slo for slo in facts.slos if slo.name not in usual]
    level = facts.result.at_knee
    parts += [f"{slo_name(slo)} {_observed(level, slo)}" for slo in others if level is not None]
    parts += [f"{format_number(facts.knee.in_flight)} requests in flight"] * facts.is_rate
    return [f"At {facts.measured_at:,}: {', '.join(parts)}.", *_steepness(facts)]


def _steepness(facts: ReportData) -> list[str]:
    """`Slope: from 35 to 40, p95 TTFT rises by about 31 ms per added user.`; [] if not shown."""
    if not (knee := facts.knee).steepness:
        return []
    each, word = "request/s" if facts.is_rate else facts.who, knee.steepness.capitalize()
    name, ms = statistic_name(knee.rise_of)[0], f"{float(f'{knee.rise_ms:.2g}'):,g} ms"
    how = "beyond 20 times its limit" if isnan(knee.rise_ms) else f"by about {ms} per added {each}"
    return [f"{word}: from {knee.holds:,} to {knee.fails_by:,}, {name} rises {how}."]


def _replicas(facts: ReportData) -> list[str]:
    """The replicas for U users: U over the lower end of the interval, rounded up."""
    promised = facts.status in (Status.found, Status.not_reached)
    each = int(facts.knee.holds or facts.knee.ci95[0] or 0)
    if not promised or each < 1 or facts.is_rate:
        return []
    exact, planned = facts.status == Status.found, int(facts.config.get("plan_users") or 0)
    if not planned:
        # Without an SLO nothing was promised: it is where throughput over latency peaks.
        verb = "holds" if facts.slos else "is best at"
        plain = f"Each replica {verb} {each:,}, so U {facts.who}s need R = ceil(U / {each:,})"
        return [f"{plain} replicas."] * exact
    # An upper bound where the knee may be higher.
    least, most = ("", "") if exact else ("at least ", "at most ")
    need, users = count_of(-(-planned // each), "replica"), count_of(planned, facts.who)
    division = f"R = ceil({planned:,} / {each:,}) = {need}"
    return [f"Each replica holds {least}{each:,}, so {users} need {most}{division}."]


def replica_sentences(facts: ReportData) -> list[str]:
    """How unevenly replicas were loaded, and which of them did not show their metrics."""
    uneven = [level for level in facts.used if level.skew]
    lines = [f"At {facts.level_text(x.load)}, {x.skew}." for x in uneven[-1:]]
    if facts.result.command == "drill":  # a replica that was killed answers nobody
        return lines + survivor_sentences(facts)
    audits = [level.audit for level in facts.used if level.audit]
    lines += [
        f"The servers whose metrics were read generated {1 + one.surplus:.0%} of the tokens that "
        "arrived: the metrics of a replica may be missing; try --metrics-url for each."
        for one in audits[-1:]
        if one.surplus < -0.2 and one.client_tokens >= 500  # noqa: PLR2004 - not by its edges alone
    ]
    failed = as_mapping(facts.result.client.get("scrapes_failed"))
    return lines + [
        f"The server's figures have gaps, because no sum may lack a replica: {int(n):,} times "
        f"{why.rstrip('.')}."
        for why, n in failed.items()
    ]


def at_once_sentences(facts: ReportData) -> list[str]:
    """At which level answers came whole, so that no time to a first token can be told."""
    whole = [level for level in facts.used if not level.tells_ttft]
    return [
        f"At {facts.level_text(level.load)}, {level.came_at_once:.0%} of the answers came all at "
        "once, in one event or one read, so TTFT and ITL cannot be told from e2e: expected a "
        "stream of tokens; try without a proxy that buffers, or a lower --stream-interval."
        for level in whole[-1:]
    ]


def silent_sentences(facts: ReportData) -> list[str]:
    """When the server gave its last good answer, if all that ended later failed."""
    table = facts.run.table
    if not len(table) or facts.result.command == "drill":
        return []
    good, bad = table.outcome == OK, failed_requests(table)
    last_ns = int(table.done_ns[good].max()) if good.any() else 0
    later = int((bad & (table.done_ns > last_ns)).sum())
    if later < MIN_SILENT:
        return []
    if not last_ns:
        return [f"None of the {later:,} requests that ended was answered well."]
    after_s = (last_ns - int(table.sent_ns.min())) / SECOND
    failed = f"all {count_of(later, 'request')} that ended later failed"
    return [f"The last good answer ended {after_s:,.1f} s after the load began; {failed}."]


def survivor_sentences(facts: ReportData) -> list[str]:
    """What the replicas that answered had in flight while others did not, level by level."""
    lines = []
    for level in facts.used:
        seen = samples_within(facts.run.some, level.settled_ns, level.end_ns)
        means = []
        for name, one in replica_figures(seen).items():
            running, waiting = map(format_number, (one.running_mean, one.waiting_mean))
            means.append(f"{name} had {running} running and {waiting} waiting")
        if means:
            scrapes, where = count_of(len(seen), "scrape"), facts.level_text(level.load)
            when = f"In {scrapes} of phase {level.index + 1} ({where}) a replica did not answer"
            lines.append(f"{when}: {' and '.join(means)}.")
    return lines


def triage_sentences(facts: ReportData) -> list[str]:
    """A sentence about the lowest level (above the knee, if found) that breaks a limit."""
    limited = zip(SYMPTOMS, p95_limits_ns(facts.slos), strict=True)
    signs = [sign for sign, limit_ns in limited if not isnan(limit_ns)]
    knee = facts.knee.estimate or 0
    for levels in facts.by_users:
        level = max(levels, key=lambda one: one.seconds)
        if level.load <= knee or not _shown_over(level):
            continue
        shares = level.over_share
        over = [s for s in signs if shares.get(f"{s.metric}_p95", 0) > 1 - TRIAGE_QUANTILE]
        if over:
            verb = "are over their limits" if over[1:] else "is over its limit"
            what = f"{' and '.join(sign.title for sign in over)} {verb}"
            where = ", and ".join(f"inspect {sign.inspect}" for sign in over)
            return [f"At {facts.level_text(level.load)} {what}: {where}."]
    return []


def _shown_over(level: Level) -> bool:
    """Whether the level was decided to break a limit; an undecided one is never reported."""
    if level.n_failed > (1 - TRIAGE_QUANTILE) * level.ttft_ms.n:
        return False  # neither queue nor batch is the cause
    missed = any(one.verdict == Verdict.missed for one in level.slos)
    return missed or level.decision == Decision.failed


STATUSES: Final[dict[Status, Callable[[ReportData], Answer]]] = {
    Status.found: _found,
    Status.slo_failed_at_min: _slo_failed_at_min,
    Status.not_reached: _not_reached,
    Status.inconclusive: _inconclusive,
    Status.target_failed: _target_failed,
    Status.invalid: _invalid,
    Status.interrupted: _interrupted,
    Status.met: _held,
    Status.missed: _held,
    Status.measured: _held,
}
