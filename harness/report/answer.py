"""The answer in plain words: a headline, then the bottleneck, its figures and the capacity.

Only what was measured is promised: the headline of a knee names the level that passed, not the
best estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import TYPE_CHECKING, Final

from harness.core.load import CONCURRENT, LoadUnit
from harness.core.states import WORST_FIRST, Decision, Purpose, Status, Verdict
from harness.diagnosis.server_window import replica_figures
from harness.diagnosis.triage import SYMPTOMS, TRIAGE_QUANTILE, p95_limits_ns
from harness.metrics.metrics import HEADLINES, SLO_METRICS, failed_requests
from harness.metrics.numbers import (
    Quantity,
    as_sentence,
    count_of,
    format_number,
    percent_text,
    slo_bound,
    slo_limit,
    slo_name,
    statistic_name,
)
from harness.metrics.slo import Slo
from harness.records.record_table import OK
from harness.records.samples import samples_within
from harness.report.cause_words import cause_sentences
from harness.report.delivered import delivery_sentences
from harness.report.drill_answer import drill_sentences, expectation_sentences
from harness.report.remarks import idle_gpu_sentence, sweet_spot_sentence
from harness.report.report_data import ReportData, as_mapping, knee_figures
from harness.report.small_print import loop_text
from harness.report.sweep import findings, rules_of_thumb
from harness.report.tables import tool_comparisons, tools_as_text
from harness.search.knee_estimate import PROMISED
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.diagnosis.triage import Symptom
    from harness.metrics.level_figures import Audit
    from harness.metrics.result import Level, Result, SloResult

# The servers count 20% fewer tokens than arrived, of so many that it is not the window's edges.
LARGEST_DEFICIT: Final = -0.2
FEWEST_AUDITED: Final = 500  # tokens
MERGED_TOKENS: Final = 1.5  # in an event on average: then ITL is not the time of a token
MIN_SILENT: Final = 3  # requests that failed after the last good one: fewer may be chance


@dataclass(frozen=True, slots=True)
class Answer:
    """`tone`: good, bad or unsure; it sets the color of the badge."""

    badge: str
    tone: str
    headline: str
    sentences: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)  # lines for the terminal only
    # sentences that a page leaves out, because its tiles, tables or sections have what they say
    elsewhere: list[str] = field(default_factory=list)
    simulated: str = ""  # what was simulated; "": a real server was measured

    @property
    def on_page(self) -> list[str]:
        return [sentence for sentence in self.sentences if sentence not in self.elsewhere]

    @property
    def text(self) -> str:
        lines = [self.headline, *self.sentences, *self.tables]
        if self.simulated:
            lines.insert(0, f"Simulated: {self.simulated}.")
        return "\n".join(lines)


def build_answer(facts: ReportData) -> Answer:
    answer = STATUSES[facts.status](facts)
    sentences = left_out_sentences(facts)
    if not facts.kind.has_phases:  # whose gates are in sentences of their own
        sentences += [gate.sentence for gate in facts.result.gates]
    sentences += facts.asked_later
    sentences += _beside_the_knee(facts)
    sentences += answer.sentences
    sentences += at_once_sentences(facts)
    sentences += merged_token_sentences(facts)
    sentences += silent_sentences(facts)
    sentences += delivery_sentences(facts)
    sentences += replica_sentences(facts)
    sentences += _loop_sentences(facts)
    if idle_gpu := idle_gpu_sentence(facts):
        sentences.append(idle_gpu)
    label = facts.result.target.label
    simulated = ""
    if label:
        simulated = f"{label.removeprefix('simulated ')}, no real server"
    tool_lines = tools_as_text(tool_comparisons(facts))
    return replace(
        answer,
        sentences=sentences,
        tables=tool_lines,
        elsewhere=_on_page_elsewhere(facts),
        simulated=simulated,
    )


def _loop_sentences(facts: ReportData) -> list[str]:
    """What an open loop is; [] of a closed one."""
    if not facts.unit.by_schedule:
        return []
    how = loop_text(facts.config).removeprefix("open: ")
    return [as_sentence(f"this is an open loop: {how}")]


def _on_page_elsewhere(facts: ReportData) -> list[str]:
    """What the tiles, the section on the bottleneck and the tables of a page say."""
    sentences = _loop_sentences(facts)
    about_bottleneck = cause_sentences(facts.result.bottleneck)
    sentences += about_bottleneck
    if about_bottleneck:  # a section, which goes further than this
        sentences += triage_sentences(facts)
    if facts.kind.has_phases:
        sentences += expectation_sentences(facts.result.gates)
    if facts.kind.searches:
        return [*sentences, *_figures_at_knee(facts)]
    for level in facts.used:
        if not level.unstable and not level.drift:
            sentences.append(_figures(facts, level))
    return sentences


def _beside_the_knee(facts: ReportData) -> list[str]:
    """The sweet spot of a search, whose headline is the knee; a sweep has it in `findings`."""
    if not facts.kind.searches or facts.status == Status.invalid:
        return []
    return list(filter(None, [sweet_spot_sentence(facts)]))


def _found(facts: ReportData) -> Answer:
    knee = facts.knee
    if not facts.slos:
        interval = facts.result.knee_interval
        in_brackets = f" ({interval.words})" if interval else ""
        peak = facts.unit.text(knee.estimate or 0)
        headline = (
            f"Throughput divided by latency peaks at {peak}{in_brackets}: beyond that, each "
            "additional request adds more latency than throughput."
        )
        return Answer("power knee found", "good", headline, explanation(facts))
    headline = f"{_promise(facts)} Fails at {knee.fails_by:,}; best estimate {_estimate(facts)}."
    return Answer("knee found", "good", headline, [*explanation(facts), _cost(facts)])


def _holds(facts: ReportData) -> Answer:
    """Of the knee's ends only the lower one was shown, or an upper one far away."""
    knee = facts.knee
    headline = f"{_promise(facts)} No failing level nearby"
    if knee.fails_by is not None:
        headline += f": the next one fails at {knee.fails_by:,}"
    if knee.estimate is not None:
        headline += f"; best estimate {_estimate(facts)}"
    return Answer(
        "holds", "good", f"{headline}.", [*explanation(facts), _cost(facts), _how_to_go_on(facts)]
    )


def _promise(facts: ReportData) -> str:
    """`Holds 112 concurrent requests: p95 TTFT 450 ms (400 to 480) under 500 ms.`."""
    return f"Holds {facts.unit.text(facts.knee.holds or 0)}: {_kept(facts)}."


def _estimate(facts: ReportData) -> str:
    """`137 (95% interval 127 to 150)`, or `46 (95%: at least 26)`."""
    interval = facts.result.knee_interval
    in_brackets = f" ({interval.words})" if interval else ""
    return f"{facts.knee.estimate:,}{in_brackets}"


def _how_to_go_on(facts: ReportData) -> str:
    """What would show more of the knee."""
    if facts.asked_later:
        return "To measure it, run `knee` for it."
    if facts.left_out:
        return "A longer --budget helps once the levels that were left out can be measured."
    return "Try a longer --budget."


def _cost(facts: ReportData) -> str:
    """What the search took, and the precision that it reached where that was missed."""
    knee = facts.knee
    searched = [level for level in facts.result.levels if level.purpose != Purpose.hold]
    load_ns = sum(level.judged_ns - level.chosen_ns for level in searched)
    load_s = load_ns / SECOND
    requests = sum(level.all.ttft_ms.n for level in searched)
    took = f"The search took {load_s:,.0f} s of load and {count_of(requests, 'request')}"
    if knee.holds and not knee.is_precise:
        wanted = percent_text(knee.precision)
        width = "has an open end" if isnan(knee.width) else f"is {knee.width:,.0%} wide"
        return f"{took}. The knee's interval {width}; {wanted} was asked for."
    return f"{took}."


def _kept(facts: ReportData) -> str:
    """`p95 TTFT 450 ms (400 to 480) under 500 ms`, over all holds of the level that passed."""
    pooled = knee_figures(facts)
    parts = []
    for slo in facts.slos:
        name = slo_name(slo)
        figure = pooled.get(name)
        if figure is None or not figure.known:
            figure = _observed(facts.result.at_knee, slo)
        parts.append(f"{name} {figure} {slo_bound(slo)}")
    return " and ".join(parts)


def _observed(level: Level | None, slo: Slo) -> Quantity:
    """What an SLO limits, of one level; not known without a level."""
    if level is None:
        return Quantity()
    figures = level.latencies[SLO_METRICS[slo.metric].field]
    value, low, high = figures.at(slo.statistic)
    return Quantity(value, low, high, slo.unit, slo.limit)


def _slo_failed_at_min(facts: ReportData) -> Answer:
    badge = "SLO missed at the lowest level"
    lowest = min(facts.used, key=lambda level: level.load, default=None)
    if lowest is None or not facts.slos:
        return Answer(badge, "bad", "The lowest level already fails.")
    missed = []
    for slo in facts.slos:
        over_share = lowest.over_share.get(slo.name, 0)
        if over_share > slo.allowed:
            missed.append(slo)
    where = facts.unit.text(lowest.load)
    failures = []
    for slo in missed or facts.slos[:1]:
        value = _observed(lowest, slo)
        limit = f"{slo.beyond} the {slo_limit(slo)} limit"
        failures.append(f"{slo_name(slo)} is {value} at {where}, {limit}")
    headline = f"No level passes: {' and '.join(failures)}."
    return Answer(badge, "bad", headline, explanation(facts))


def _not_reached(facts: ReportData) -> Answer:
    highest = facts.knee.holds or max((level.load for level in facts.used), default=0)
    level = f"{facts.unit.text(highest)}, the highest level tried"
    if facts.slos:
        headline = f"Holds at least {level}: {_kept(facts)}."
    else:
        headline = f"Throughput divided by latency still rises at {level}."
    next_step = f"Raise --max-{facts.unit.load.option} to find the knee."
    return Answer("knee not reached", "good", headline, [*explanation(facts), next_step])


def _inconclusive(facts: ReportData) -> Answer:
    if not facts.searched:
        return _held(facts)
    knee = facts.knee
    headline = f"Inconclusive: the measurements do not determine the knee{_bracket(facts)}."
    if knee.estimate is not None and facts.slos:
        headline += f" Best estimate {_estimate(facts)}."
    lacking = ["a level that clearly passes"]
    if knee.fails_by is None:
        lacking.append(f"a level that clearly fails (raise --max-{facts.unit.load.option})")
    next_step = f"Still needed: {' and '.join(lacking)}. {_how_to_go_on(facts)}"
    return Answer("inconclusive", "unsure", headline, [*explanation(facts), next_step])


def _target_failed(facts: ReportData) -> Answer:
    why = as_sentence(facts.result.invalid_reason)
    failed_at = [level.load for level in facts.used if level.decision == Decision.failed]
    headline = "The server failed under load"
    if len(failed_at) > 1:
        headline += f" at {facts.unit.text(failed_at[-2])}, and again at {failed_at[-1]:,}"
    elif failed_at:
        headline += f" at {facts.unit.text(failed_at[-1])}"
    sentences = [why, *explanation(facts, capacity=False)]
    return Answer("server failed", "bad", f"{headline}.", sentences)


def _invalid(facts: ReportData) -> Answer:
    headline = "Result invalid: do not use these figures."
    why = facts.result.invalid_reason
    return Answer("invalid", "bad", headline, [as_sentence(why)] if why else [])


def left_out_sentences(facts: ReportData) -> list[str]:
    """Which levels the answer does without, and why; [] if it needs none or has none."""
    left_out = facts.left_out
    # a drill names its phases, and says so first
    if not left_out or facts.status == Status.invalid or facts.kind.has_phases:
        return []
    where = facts.result.loads_text(*left_out)
    why = left_out[0].reason.rstrip(".")
    if len(left_out) == 1:
        return [f"Left out: the level of {where}, because {why}."]
    which = f"{len(left_out):,} of {len(facts.levels):,} levels ({where})"
    return [f"Left out: {which}, the first because {why}. The table gives the reason of each."]


def _interrupted(facts: ReportData) -> Answer:
    n_requests = len(facts.run.table)
    if not facts.levels and not n_requests:
        return Answer("interrupted", "unsure", "Interrupted before anything was measured.")
    requests = count_of(n_requests, "request")
    levels = count_of(len(facts.levels), "level")
    sentences = explanation(facts, capacity=False)
    if facts.knee.holds and facts.slos:  # what was shown stands
        headline = f"Interrupted. {_promise(facts)}"
        if facts.knee.fails_by is not None:
            headline += f" Fails at {facts.knee.fails_by:,}."
        sentences.insert(0, f"{requests} and {levels} were measured.".capitalize())
    else:
        headline = f"Interrupted: {requests} and {levels} were measured{_bracket(facts)}."
    return Answer("interrupted", "unsure", headline, sentences)


# Of given levels: badge and tone
HELD_BADGES: Final = {
    Status.met: ("SLO met", "good"),
    Status.missed: ("SLO missed", "bad"),
    Status.measured: ("measured", "good"),
}


def _held(facts: ReportData) -> Answer:
    """Given levels: each SLO with its verdict, then the figures."""
    if facts.kind.has_phases and facts.result.gates:
        return _drilled(facts)
    badge, tone = HELD_BADGES.get(facts.status, ("inconclusive", "unsure"))
    verdicts = _verdict_sentences(facts.result)
    advice = rules_of_thumb(facts)
    figures = advice + findings(facts)
    if not advice:
        figures += [_figures(facts, level) for level in facts.used]
    if facts.result.unheld:
        figures.append(as_sentence(facts.result.unheld))
    if verdicts:
        headline, *others = verdicts
        return Answer(badge, tone, headline, [*others, *figures, *triage_sentences(facts)])
    if figures:
        headline, *others = figures
        return Answer(badge, tone, headline, others)
    return Answer(badge, tone, "Nothing was measured.")


def _drilled(facts: ReportData) -> Answer:
    badge, tone, (headline, *sentences) = drill_sentences(facts)
    sentences += [_figures(facts, level) for level in facts.used]
    return Answer(badge, tone, headline, sentences)


def _verdict_sentences(result: Result) -> list[str]:
    """Of each SLO; the verdict that decided comes first, as the headline."""
    judged = list(result.slos)
    if result.errors is not None:
        judged.insert(0, result.errors)
    judged.sort(key=lambda slo: WORST_FIRST.index(slo.verdict))
    return [slo_sentence(slo, result.commonest_error, result.load_unit) for slo in judged]


FEWEST_SENT: Final = 2  # in a window: quantiles of a single request say nothing


def _figures(facts: ReportData, level: Level) -> str:
    """`4 concurrent requests: p95 TTFT 19 ms (18 to 20), p95 ITL 10 ms (10 to 11), 379 ...`."""
    where = facts.unit.text(level.load)
    n = sum(level.outcomes.values())
    if n < FEWEST_SENT:
        sent = f"{count_of(n, 'request')} was" if n else "no request was"
        return f"{where}: too short: {sent} sent in {format_number(level.seconds)} s."
    parts = []
    if facts.unit.by_schedule:
        parts.append(f"{format_number(level.in_flight)} in flight")
    for key, name in HEADLINES.items():
        p95 = Quantity.of(level.latency(key), "p95", facts.limit_ms(key))
        parts.append(f"p95 {name} {p95}")
    parts += [f"{slo_name(slo)} {_observed(level, slo)}" for slo in _unusual_slos(facts)]
    tokens = Quantity(level.output_tokens_per_s, unit="output tokens/s")
    sentences = [f"{where}: {', '.join(parts)}, {tokens}."]
    sentences += [as_sentence(text) for text in (level.unstable, level.drift) if text]
    return " ".join(sentences)


def _unusual_slos(facts: ReportData) -> list[Slo]:
    """Those on other figures than the p95 that every answer has."""
    usual = {f"{key}_p95" for key in HEADLINES}
    return [slo for slo in facts.slos if slo.name not in usual]


def slo_sentence(result: SloResult, commonest_error: str = "", unit: LoadUnit = CONCURRENT) -> str:
    """`ttft_p95=20ms missed at 4 concurrent requests: 4 of 19 over 20 ms (21.0%; ...).`.

    Of failures: `SLO missed: 8 of 12 requests failed at 4 ... (67.0%; 1% allowed), mostly: ...`.
    """
    where = _judged_at(result, unit)
    if result.slo.startswith("max_errors"):
        mostly = f", most often with {commonest_error!r}" if commonest_error else ""
        failed = f"{result.n_over:,.0f} of {result.n:,} requests failed"
        return f"SLO missed: {failed}{where} {_shares(result)}{mostly}."
    sentence = f"{result.slo} {result.verdict}{where}: {_slo_evidence(result)}"
    if result.verdict == Verdict.inconclusive:
        if result.needs_more:
            more = count_of(result.needs_more, "more request")
            sentence += f"; about {more} would decide it"
        elif _is_of_search(result):
            sentence += "; a longer --budget would decide it"
    return f"{sentence}."


def _judged_at(result: SloResult, unit: LoadUnit) -> str:
    """` at 4 concurrent requests`; "" for the whole run."""
    return f" at {unit.text(result.load)}" if result.load else ""


def _slo_evidence(result: SloResult) -> str:
    """`4 of 19 over 20 ms (21.0%; 5% allowed)`; of a search the quantile itself."""
    if result.n:
        slo = Slo.parse(result.slo)
        beyond = f"{slo.beyond} {slo_limit(slo)}"
        return f"{result.n_over:,.0f} of {result.n:,} {beyond} {_shares(result)}"
    if _is_of_search(result):
        slo = Slo.parse(result.slo)
        return str(Quantity(result.observed, unit=slo.unit, limit=slo.limit))
    return f"no observations for {result.slo}"


def _shares(result: SloResult) -> str:
    """`(21.0%; 5% allowed)`."""
    share = float(f"{result.n_over / result.n:.2g}") if result.n else 0
    return f"({share:.1%}; {percent_text(result.allowed)} allowed)"


def _is_of_search(result: SloResult) -> bool:
    """A search decides by its sequential test, so its verdicts count no observations."""
    return not result.n and not isnan(result.observed)


def _bracket(facts: ReportData) -> str:
    """`: passed at 48, failed at 56`, as far as levels were decided."""
    passed = [level.load for level in facts.used if level.decision == Decision.passed]
    failed = [level.load for level in facts.used if level.decision == Decision.failed]
    parts = []
    if highest := max(passed, default=0):
        parts.append(f"passed at {highest:,}")
    if lowest := min(failed, default=0):
        parts.append(f"failed at {lowest:,}")
    return f": {', '.join(parts)}" if parts else ""


def explanation(facts: ReportData, *, capacity: bool = True) -> list[str]:
    """The bottleneck, the figures at the knee, and the number of replicas."""
    sentences = cause_sentences(facts.result.bottleneck)
    if facts.result.proof:
        sentences.append(facts.result.proof.sentence)
    sentences += triage_sentences(facts)
    sentences += knee_sentences(facts)
    if capacity:
        sentences += _replicas(facts)
    return sentences


def knee_sentences(facts: ReportData) -> list[str]:
    """The figures of the knee, and how steep it is; empty when nothing was measured."""
    figures = _figures_at_knee(facts)
    return [*figures, *_steepness(facts)] if figures else []


def _figures_at_knee(facts: ReportData) -> list[str]:
    """`At 34: p95 TTFT 434 ms (397 to 459), ...`; [] when nothing was measured."""
    parts = []
    for name, figure in knee_figures(facts).items():
        if figure.known:
            # Tokens per second say what they are by their unit.
            parts.append(f"{name} {figure}" if figure.unit == "ms" else str(figure))
    if not parts:
        return []
    level = facts.result.at_knee
    if level is not None:
        parts += [f"{slo_name(slo)} {_observed(level, slo)}" for slo in _unusual_slos(facts)]
    if facts.unit.by_schedule:
        parts.append(f"{format_number(facts.knee.in_flight)} requests in flight")
    return [f"At {facts.measured_at:,}: {', '.join(parts)}."]


def _steepness(facts: ReportData) -> list[str]:
    """`Slope: from 35 to 40, p95 TTFT rises by about 31 ms per added user.`; [] if not shown."""
    knee = facts.knee
    if not knee.steepness:
        return []
    name, _ = statistic_name(knee.rise_of)
    how = "beyond 20 times its limit"
    if not isnan(knee.rise_ms):
        rise_ms = float(f"{knee.rise_ms:.2g}")
        how = f"by about {rise_ms:,g} ms per added {facts.unit.short_one}"
    where = f"from {knee.holds:,} to {knee.fails_by:,}"
    return [f"{knee.steepness.capitalize()}: {where}, {name} rises {how}."]


def _replicas(facts: ReportData) -> list[str]:
    """The replicas for U users: U over the lower end of the interval, rounded up."""
    is_exact = facts.status == Status.found
    per_replica = int(facts.knee.holds or facts.knee.ci95[0] or 0)
    if facts.status not in PROMISED:
        return []
    if per_replica < 1 or facts.unit.by_schedule:
        return []
    planned = int(facts.config.get("plan_users") or 0)
    if planned:
        return [_replicas_for(facts, planned, per_replica, is_exact=is_exact)]
    if not is_exact:
        return []
    # Without an SLO nothing was promised: it is where throughput over latency peaks.
    verb = "holds" if facts.slos else "is best at"
    target = facts.result.target
    need = f"U {facts.unit.many} need U / {per_replica:,} {target.noun}s, rounded up"
    return [f"Each {target.noun}{target.many_gpus} {verb} {per_replica:,}: {need}."]


def _replicas_for(facts: ReportData, planned: int, per_replica: int, *, is_exact: bool) -> str:
    """`Each replica holds 40, so 1,000 users need 25 replicas (1,000 / 40, rounded up).`."""
    # An upper bound where the knee may be higher.
    least = "" if is_exact else "at least "
    most = "" if is_exact else "at most "
    rounded_up = -(-planned // per_replica)
    target = facts.result.target
    replicas = count_of(rounded_up, target.noun)
    if target.gpus > 1:
        replicas += f" with {rounded_up * target.gpus:,} GPUs"
    users = facts.unit.short(planned)
    how = f"{planned:,} / {per_replica:,}, rounded up"
    need = f"{users} need {most}{replicas} ({how})"
    return f"Each {target.noun}{target.many_gpus} holds {least}{per_replica:,}, so {need}."


def replica_sentences(facts: ReportData) -> list[str]:
    """How unevenly replicas were loaded, and which of them did not show their metrics."""
    sentences = []
    uneven = [level for level in facts.used if level.skew]
    if uneven:
        level = uneven[-1]
        sentences.append(f"At {facts.unit.text(level.load)}, {level.skew}.")
    if facts.kind.servers_may_die:  # a replica that was killed answers nobody
        return sentences + survivor_sentences(facts)
    audits = [level.audit for level in facts.used if level.audit]
    if audits and _lacks_metrics(audits[-1]):
        share = 1 + audits[-1].surplus
        sentences.append(
            f"The servers whose metrics were read generated {share:.0%} of the tokens that "
            "arrived: the metrics of a replica may be missing; try --metrics-url for each."
        )
    failures = as_mapping(facts.result.client.get("scrapes_failed"))
    for why, times in failures.items():
        sentences.append(
            f"The server's metrics were not read {int(times):,} times, so its figures have gaps: "
            f"{why.rstrip('.')}."
        )
    return sentences


def _lacks_metrics(audit: Audit) -> bool:
    """Whether the servers count far fewer tokens than arrived, of more than a window's edges."""
    return audit.surplus < LARGEST_DEFICIT and audit.client_tokens >= FEWEST_AUDITED


def at_once_sentences(facts: ReportData) -> list[str]:
    """At which level answers came whole, so that no time to a first token can be told."""
    untold = [level for level in facts.used if not level.tells_ttft]
    if not untold:
        return []
    level = untold[-1]
    sentence = (
        f"At {facts.unit.text(level.load)}, {level.came_at_once:.0%} of the answers came all at "
        "once, in one event or one read, so TTFT and ITL are not known apart from e2e: expected a "
        "stream of tokens; try without a proxy that buffers, or a lower --stream-interval."
    )
    return [sentence]


def merged_token_sentences(facts: ReportData) -> list[str]:
    """What ITL is where events carry more than one token however light the load is."""
    levels = facts.used
    are_merged = all(level.tokens_per_event >= MERGED_TOKENS for level in levels)
    if not levels or not are_merged:
        return []
    level = levels[-1]
    per_token = Quantity.of(level.latency("itl_per_token"), "p95")
    sentence = (
        "At every level events carried more than one token on average, and ITL is the time "
        f"between events: at {facts.unit.text(level.load)} there were "
        f"{format_number(level.tokens_per_event)} tokens in an event, and a token took {per_token} "
        "at p95."
    )
    return [sentence]


def silent_sentences(facts: ReportData) -> list[str]:
    """When the server gave its last good answer, if all that ended later failed."""
    table = facts.run.table
    if not len(table) or facts.kind.servers_may_die:
        return []
    is_good = table.outcome == OK
    last_good_ns = 0
    if is_good.any():
        last_good_ns = int(table.done_ns[is_good].max())
    failed_later = failed_requests(table) & (table.done_ns > last_good_ns)
    n_failed = int(failed_later.sum())
    if n_failed < MIN_SILENT:
        return []
    if not last_good_ns:
        return [f"None of the {n_failed:,} requests that ended was answered well."]
    after_s = (last_good_ns - int(table.sent_ns.min())) / SECOND
    failed = f"all {count_of(n_failed, 'request')} that ended later failed"
    return [f"The last good answer ended {after_s:,.1f} s after the load began; {failed}."]


def survivor_sentences(facts: ReportData) -> list[str]:
    """What the replicas that answered had in flight while others did not, level by level."""
    sentences = []
    for level in facts.used:
        scrapes = samples_within(facts.run.some, level.settled_ns, level.end_ns)
        means = []
        for name, figures in replica_figures(scrapes).items():
            running = format_number(figures.running_mean)
            waiting = format_number(figures.waiting_mean)
            means.append(f"{name} had {running} running and {waiting} waiting")
        if means:
            phase = f"phase {level.index + 1} ({facts.unit.text(level.load)})"
            when = f"In {count_of(len(scrapes), 'scrape')} of {phase} a replica did not answer"
            sentences.append(f"{when}: {' and '.join(means)}.")
    return sentences


def triage_sentences(facts: ReportData) -> list[str]:
    """A sentence about the lowest level (above the knee, if found) that breaks a limit."""
    limits_ns = p95_limits_ns(facts.slos)
    with_limits = zip(SYMPTOMS, limits_ns, strict=True)
    limited = [symptom for symptom, limit_ns in with_limits if not isnan(limit_ns)]
    knee = facts.knee.estimate or 0
    for levels in facts.by_users:
        longest = max(levels, key=lambda level: level.seconds)
        if longest.load > knee and _shown_over(longest):
            over = [symptom for symptom in limited if _is_over(longest, symptom)]
            if over:
                return [_triage_sentence(facts.unit.text(longest.load), over)]
    return []


def _is_over(level: Level, symptom: Symptom) -> bool:
    """Whether the p95 is over its limit: more of the values than it allows are."""
    share = level.over_share.get(f"{symptom.metric}_p95", 0)
    return share > 1 - TRIAGE_QUANTILE


def _triage_sentence(where: str, over: Sequence[Symptom]) -> str:
    verb = "is over its limit" if len(over) == 1 else "are over their limits"
    titles = " and ".join(symptom.title for symptom in over)
    inspect = ", and ".join(f"inspect {symptom.inspect}" for symptom in over)
    return f"At {where} {titles} {verb}: {inspect}."


def _shown_over(level: Level) -> bool:
    """Whether the level was decided to break a limit; an undecided one is never reported."""
    if level.n_failed > (1 - TRIAGE_QUANTILE) * level.ttft_ms.n:
        return False  # neither queue nor batch is the cause
    missed = any(slo.verdict == Verdict.missed for slo in level.slos)
    return missed or level.decision == Decision.failed


STATUSES: Final[dict[Status, Callable[[ReportData], Answer]]] = {
    Status.found: _found,
    Status.holds: _holds,
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
