"""Knee: where the search is, and how latency and throughput answer to users and rates."""

from __future__ import annotations

from typing import Final

from harness.export.metric_definitions import HARNESS_SERIES, quantile
from panels.model import TOKENS_PER_S, Dashboard, Note, Panel, Query, Row
from panels.promql import (
    SAME,
    THIS_RUN,
    VARIABLES,
    WINDOW,
    run,
    run_buckets,
    run_rate,
    run_result,
)

GREEN, AMBER, RED = "green", "orange", "red"
NEAR: Final = ((0.0, GREEN), (0.8, AMBER), (1.0, RED))  # shares of a limit
USERS: Final = f"sum({run('users_running')})"
MEASURING: Final = "({}) == 1".format(run("level_phase", 'phase="measuring"'))
# of every run chosen: else ramps, and two levels, would be in one window
STEADY: Final = f"max(changes({HARNESS_SERIES['users_running']}{WINDOW}) {THIS_RUN}) == 0"
WHILE: Final = f"and on () ({MEASURING}) and on () ({STEADY})"


def p95(key: str) -> str:
    """Of a run."""
    return quantile(0.95, run_buckets(key))


def limits(key: str) -> Query:
    """One dashed line for each limit of a latency."""
    which = f'slo=~"{key}_p[0-9]+"'
    return Query("limit of {{slo}}", f"max by (slo) ({run('slo_limit', which)})", "limit")


def _limit(key: str) -> str:
    which = f'slo="{key}_p95"'
    return f"max({run('slo_limit', which)})"


def _over_time(key: str, name: str, do: str) -> Panel:
    return Panel(
        f"{name} p95 and users",
        "graph",
        "s",
        (Query(f"p95 {name}", p95(key)), limits(key), Query("users", USERS, "users")),
        f"p95 {name} over the window, and the users running (right axis).",
        "A level passes when the line stays below the dashed limit for the whole measured phase "
        "(shaded). Just after an increase the window covers two levels.",
        do,
        12,
        10,
    )


def _against(key: str, name: str, do: str) -> Panel:
    return Panel(
        f"{name} p95 against users",
        "xy",
        "s",
        (
            Query("users", f"{USERS} {WHILE}"),
            Query(f"p95 {name}", f"{p95(key)} {WHILE}"),
            Query("limit", f"{_limit(key)} {WHILE}", "limit"),
        ),
        f"Each point is a moment of a measured phase: its users (x) and p95 {name} (y).",
        "Flat, then a bend: the knee is where the points cross the dashed limit. A column of "
        "points is the noise of one level. Only windows with a constant number of users "
        "are shown: no points means that levels are shorter than the window, of four scrapes.",
        do,
        8,
        9,
    )


def _stat(  # noqa: PLR0917 - a row of a table
    title: str,
    unit: str,
    expr: str,
    shows: str,
    read: str,
    do: str,
    *,
    colours: tuple[tuple[float, str], ...] = (),
    decimals: int = 0,
    empty: str = "",
) -> Panel:
    queries = (Query(title, expr),)
    return Panel(
        title, "stat", unit, queries, shows, read, do, 3, 4, colours, decimals=decimals, empty=empty
    )


def _share(key: str, name: str, look: str) -> Panel:
    expr = f"{p95(key)} / {_limit(key)}"
    return _stat(
        f"p95 {name} / limit",
        "percentunit",
        expr,
        f"p95 {name} as a percentage of its SLO.",
        "Below 100% the SLO is met at the moment; the run decides by the whole level.",
        f"Red at a level that should pass: {look}.",
        colours=NEAR,
        empty="no SLO",
    )


BRACKET: Final = Panel(
    "Bracket",
    "stat",
    "none",
    (
        Query("passed", run_result("bracket_low_users")),
        Query("failed", run_result("bracket_high_users")),
    ),
    "The highest level so far that met every SLO, and the lowest that did not.",
    "The knee lies between the two.",
    "No level failed: raise --max-users. No level passed: lower --min-users.",
    3,
    4,
    empty="not yet",
    zero_is_empty=True,
)
KNEE: Final = Panel(
    "Knee",
    "stat",
    "none",
    (
        Query("from", run_result("knee_low_users")),
        Query("knee", run_result("knee_users")),
        Query("to", run_result("knee_high_users")),
    ),
    "Concurrent users up to which every SLO is met, with its 95% interval.",
    "Reported once, when the run has ended.",
    "Plan replicas with the lower end: users divided by it, rounded up.",
    3,
    4,
    empty="not yet",
    zero_is_empty=True,
)
FIRST: Final = (
    _stat(
        "Users",
        "none",
        USERS,
        "Users running now, including those that are about to stop.",
        "Compare with the dashed target in Search progress, below.",
        "Not the target: see Client health.",
    ),
    _stat(
        "Level",
        "none",
        f"max({run('level')})",
        "Number of the current level.",
        "A search takes 6 to 12; 0 before the first.",
        "If it does not change for minutes, requests are long: give it a longer --budget.",
    ),
    _share("ttft", "TTFT", "see Latency, TTFT split: queue or prefill"),
    _share("itl", "ITL", "see Server: running, KV cache, preemptions"),
    _stat(
        "Output tokens/s",
        TOKENS_PER_S,
        f"sum({run_rate('output_tokens')})",
        "Tokens received per second.",
        "It stops growing when the server is saturated.",
        "Flat while users increase: more users only wait longer.",
    ),
    _stat(
        "Goodput",
        "reqps",
        f"sum({run_rate('good_requests')})",
        "Requests per second that met every SLO.",
        "It falls beyond the knee while throughput does not.",
        "Quote this figure, not requests per second.",
        decimals=1,
    ),
    BRACKET,
    KNEE,
    _over_time("ttft", "TTFT", "Over the limit: look at queueing and prefill in Latency."),
    _over_time("itl", "ITL", "Over the limit: look at the batch and the KV cache in Server."),
)
AGAINST: Final = (
    _against(
        "ttft",
        "TTFT",
        "A steep bend is a queue: more slots (max_num_seqs) or replicas. A "
        "slow rise is prefill sharing steps with decoding.",
    ),
    _against("itl", "ITL", "A slow rise is the batch growing; jumps are preemptions or prompts."),
    Panel(
        "Throughput against users",
        "xy",
        "none",
        (
            Query("users", f"{USERS} {WHILE}"),
            Query("output tokens/s", f"sum({run_rate('output_tokens')}) {WHILE}"),
        ),
        "Output tokens per second against users, for windows with a constant number of users.",
        "It rises linearly while there is capacity, then stays flat at the server's maximum.",
        "If it bends below the knee, the SLO is loose; above it, the SLO is tight.",
        8,
        9,
    ),
)
SEARCH: Final = (
    Panel(
        "Search progress",
        "graph",
        "none",
        (
            Query("target", f"max({run('users_target')})", "limit"),
            Query("users", USERS),
            Query("passed up to", f"max({run('bracket_low_users')})"),
            Query("failed from", f"max({run('bracket_high_users')})"),
            Query("knee", f"max({run('knee_users')})"),
        ),
        "Target users, users running, and the bracket of the knee as it narrows.",
        "It climbs until a level fails, then holds what narrows the bracket most.",
        "If users lag behind the target: answers are long, or the client is busy.",
        8,
        9,
    ),
    Panel(
        "Requests by outcome",
        "graph",
        "reqps",
        (
            Query("met every SLO", f"sum({run_rate('good_requests')})"),
            Query("{{outcome}}", f"sum by (outcome) ({run_rate('requests')}) > 0"),
        ),
        "Requests that ended per second, by outcome, and those that met every SLO.",
        "The gap between `ok` and `met every SLO` is work that came too late.",
        "Anything but `ok`: see the error in the report; failures count as infinitely slow.",
        8,
        9,
    ),
    Panel(
        "Latencies over their SLO limit",
        "graph",
        "percentunit",
        (
            Query(
                "{{slo}}",
                f"sum by (slo) ({run_rate('slo_misses')}) / "
                f"sum by (slo) ({run_rate('slo_observations')})",
            ),
        ),
        "Share of latencies over each SLO's limit, counted exactly (not from buckets).",
        "A p95 SLO allows 5%, a p99 SLO allows 1%.",
        "Above that share at a level that should pass: this SLO limits the knee.",
        8,
        9,
    ),
)
RATE: Final = (
    Panel(
        "Rate search",
        "graph",
        "reqps",
        (
            Query("target", f"max({run('rate_target')})", "limit"),
            Query("sent and ended", f"sum({run_rate('requests')})"),
            Query("passed up to", f"max({run('bracket_low_rate')})"),
            Query("failed from", f"max({run('bracket_high_rate')})"),
            Query("knee", f"max({run('knee_rate')})"),
            Query("from", f"max({run('knee_low_rate')})"),
            Query("to", f"max({run('knee_high_rate')})"),
        ),
        "Target rate of an open loop, the requests that ended per second, and the bracket of the "
        "knee with, in the end, its interval.",
        "The rate doubles until a level fails, then the bracket is bisected.",
        "If fewer requests end than are due, the rate is above capacity: see the requests in "
        "flight.",
        8,
        9,
    ),
    Panel(
        "Requests in flight and rate",
        "graph",
        "reqps",
        (
            Query("rate", f"max({run('rate_target')})"),
            Query("in flight", f"sum({run('in_flight')})", "users"),
        ),
        "Target rate, and the requests in flight (right axis).",
        "At a rate that the server takes they stay level; above it they grow as long as it lasts.",
        "If they grow, no latency of the level means anything: lower the rate, or add a replica.",
        8,
        9,
    ),
    Panel(
        "TTFT p95 against rate",
        "xy",
        "s",
        (
            Query("requests/s", f"max({run('rate_target')}) and on () ({MEASURING})"),
            Query("p95 TTFT", f"{p95('ttft')} and on () ({MEASURING})"),
            Query("limit", f"{_limit('ttft')} and on () ({MEASURING})", "limit"),
        ),
        "Each point is a moment of a measured phase: its rate (x) and p95 TTFT (y).",
        "Flat, then steep: the knee is where the points cross the dashed limit. A column of points "
        "that climbs is a level above capacity.",
        "Leave room below the knee: arrivals come in bursts, and a queue forgets slowly.",
        8,
        9,
    ),
)
DRILL: Final = (
    Panel(
        "Expectations of a drill",
        "graph",
        "short",
        (Query("{{expectation}}", f"max by (expectation) ({run('drill_expectation')})"),),
        "One for an expectation that came true, zero for one that did not; no line while it is not "
        "decided.",
        "Red marks on every graph are the drill's events.",
        "A zero: see when it showed in the run's report, and what the server did then.",
        24,
        7,
    ),
)
NOTES: Final = (
    Note(
        "measured",
        f"(({run('level_purpose')}) == 1) {SAME} ({MEASURING})",
        "measured: {{purpose}}",
        "blue",
    ),
    Note(
        "level ended",
        f"increase(harness_levels_total{WINDOW}) > 0 {THIS_RUN}",
        "level ended: {{decision}}",
        "purple",
    ),
    Note(
        "drill",
        f"increase(harness_drill_events_total{WINDOW}) > 0 {THIS_RUN}",
        "drill: {{event}}",
        "red",
    ),
    Note("knee found", f"({run('knee_users')} or {run('knee_rate')}) > 0", "knee found", GREEN),
)
DASHBOARD: Final = Dashboard(
    "Knee",
    "How many concurrent users this server holds: the search as it progresses.",
    (
        Row("", FIRST),
        Row("Against users", AGAINST),
        Row("Search", SEARCH),
        Row("Rates (open loop)", RATE),
        Row("Drill", DRILL),
    ),
    VARIABLES,
    NOTES,
)
