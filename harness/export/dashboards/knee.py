"""Knee: where the search is, and how latency and throughput answer to users."""

from __future__ import annotations

from typing import Final

from harness.export.dashboards.model import Dashboard, Note, Panel, Query, Row
from harness.export.dashboards.promql import (
    OURS,
    SAME,
    THIS_RUN,
    VARIABLES,
    WINDOW,
    quantile,
    run,
    run_buckets,
    run_rate,
    run_result,
)

GREEN, AMBER, RED = "green", "orange", "red"
NEAR: Final = ((0.0, GREEN), (0.8, AMBER), (1.0, RED))  # shares of a limit
USERS: Final = f"sum({run('users_running')})"
MEASURING: Final = "({}) == 1".format(run("step_phase", 'phase="measuring"'))
# of every run chosen: else ramps, and two levels, would be in one window
STEADY: Final = f"max(changes({OURS['users_running']}{WINDOW}) {THIS_RUN}) == 0"
WHILE: Final = f"and on () ({MEASURING}) and on () ({STEADY})"


def p95(key: str) -> str:
    """Of a run."""
    return quantile(0.95, run_buckets(key))


def limits(key: str) -> Query:
    """One dashed line for each limit of a latency."""
    which = f'slo=~"{key}_.+"'
    return Query("limit of {{slo}}", f"max by (slo) ({run('slo_limit', which)})", "limit")


def _limit(key: str) -> str:
    which = f'slo="{key}_p95"'
    return f"max({run('slo_limit', which)})"


def _over_time(key: str, name: str, do: str) -> Panel:
    return Panel(
        f"{name} p95 and users", "graph", "s",
        (Query(f"p95 {name}", p95(key)), limits(key), Query("users", USERS, "users")),
        f"p95 {name} of the last window beside the users that run, which are on the right.",
        "A level is kept when the line stays under the dashed limit for the whole measured part "
        "(shaded); just after a step up it looks back at two levels.",
        do, 12, 10,
    )  # fmt: skip


def _against(key: str, name: str, do: str) -> Panel:
    return Panel(
        f"{name} p95 against users", "xy", "s",
        (Query("users", f"{USERS} {WHILE}"), Query(f"p95 {name}", f"{p95(key)} {WHILE}"),
         Query("limit", f"{_limit(key)} {WHILE}", "limit")),
        f"Each point is one moment of a measured part: users to the right, p95 {name} upwards.",
        "Flat, then a bend: the knee is where the points cross the dashed limit. A column of "
        "points "
        "is a level's noise. Only moments whose whole window had the same users: no points at all "
        "means that steps are shorter than the window.",
        do, 8, 9,
    )  # fmt: skip


def _stat(  # noqa: PLR0917 - a row of a table
    title: str, unit: str, expr: str, shows: str, read: str, do: str, *,
    colours: tuple[tuple[float, str], ...] = (), decimals: int = 0, empty: str = "",
) -> Panel:  # fmt: skip
    queries = (Query(title, expr),)
    return Panel(title, "stat", unit, queries, shows, read, do, 3, 4, colours, decimals=decimals,
                 empty=empty)  # fmt: skip


def _share(key: str, name: str, look: str) -> Panel:
    expr = f"{p95(key)} / {_limit(key)}"
    return _stat(
        f"p95 {name} / limit", "percentunit", expr, f"p95 {name} as a share of its SLO.",
        "Below 100 % the promise is kept now; the run decides by the whole step.",
        f"Red at a level that should hold: {look}.", colours=NEAR, empty="no limit",
    )  # fmt: skip


BRACKET: Final = Panel(
    "Bracket", "stat", "none",
    (Query("kept", run_result("bracket_low_users")),
     Query("broken", run_result("bracket_high_users"))),
    "The highest level so far that kept every SLO, and the lowest that did not.",
    "The knee lies between the two; only one of them is known until a level broke.",
    "Never a broken one: raise --max-users. Never a kept one: start lower with --min-users.",
    3, 4, empty="not yet", zero_is_empty=True,
)  # fmt: skip
KNEE: Final = Panel(
    "Knee", "stat", "none",
    (Query("from", run_result("knee_low_users")), Query("knee", run_result("knee_users")),
     Query("to", run_result("knee_high_users"))),
    "Concurrent users up to which every SLO holds, between the ends of its 95 % interval.",
    "Said once, when the run is over: until then there is none.",
    "Plan replicas with the lower end: users / lower end, rounded up.",
    3, 4, empty="not yet", zero_is_empty=True,
)  # fmt: skip
FIRST: Final = (
    _stat("Users", "none", USERS, "Users that run now, retiring ones included.",
          "Against the dashed target of The search, below.",
          "Not what was asked for: look at Client health."),
    _stat("Step", "none", f"max({run('step')})", "Number of the load step under way.",
          "A search takes 6 to 12; 0 before the first.",
          "It stands still for minutes: requests are long, give it a longer --budget."),
    _share("ttft", "TTFT", "see Latency, TTFT split: queue or prefill"),
    _share("itl", "ITL", "see Server: running, KV cache, preemptions"),
    _stat("Output tokens/s", "none", f"sum({run_rate('output_tokens')})",
          "Tokens that arrived per second.", "It stops growing where the server is full.",
          "Flat while users grow: more users only wait longer."),
    _stat("Goodput", "reqps", f"sum({run_rate('good_requests')})",
          "Requests per second that met every SLO.", "It falls beyond the knee while throughput "
          "stays.", "Quote this figure, not requests per second.", decimals=1),
    BRACKET,
    KNEE,
    _over_time("ttft", "TTFT", "Over the limit: queueing and prefill, see Latency."),
    _over_time("itl", "ITL", "Over the limit: decode scheduling and memory, see Server."),
)  # fmt: skip
AGAINST: Final = (
    _against("ttft", "TTFT", "A steep bend is a queue: more seats or replicas. A slow rise is "
             "prefill sharing steps with decoding."),
    _against("itl", "ITL", "A slow rise is the batch growing; jumps are preemptions or prompts."),
    Panel(
        "Throughput against users", "xy", "none",
        (Query("users", f"{USERS} {WHILE}"),
         Query("output tokens/s", f"sum({run_rate('output_tokens')}) {WHILE}")),
        "Output tokens per second at that many users, wherever a whole window had the same users.",
        "It rises in a line while there is room, then lies flat: the server's ceiling.",
        "The bend is left of the knee: the promise is loose; right of it: it is tight.", 8, 9,
    ),
)  # fmt: skip
SEARCH: Final = (
    Panel(
        "The search", "graph", "none",
        (Query("target", f"max({run('users_target')})", "limit"), Query("users", USERS),
         Query("kept up to", f"max({run('bracket_low_users')})"),
         Query("broken from", f"max({run('bracket_high_users')})"),
         Query("knee", f"max({run('knee_users')})")),
        "Users asked for and running, and the bracket of the knee as it closes.",
        "Doubling until a level breaks, then halving between the two ends, then both again.",
        "Users lag behind the target: answers are long, or the client is busy.", 8, 9,
    ),
    Panel(
        "Requests by what became of them", "graph", "reqps",
        (Query("met every SLO", f"sum({run_rate('good_requests')})"),
         Query("{{outcome}}", f"sum by (outcome) ({run_rate('requests')}) > 0")),
        "Requests that ended per second, by outcome, and those of them that met every SLO.",
        "The gap between `ok` and the good ones is work that came too late.",
        "Anything but `ok`: the report names the error; failures count as infinitely slow.", 8, 9,
    ),
    Panel(
        "Latencies over their limit", "graph", "percentunit",
        (Query("{{slo}}", f"sum by (slo) ({run_rate('slo_misses')}) / "
               f"sum by (slo) ({run_rate('slo_observations')})"),),
        "Share of latencies over each SLO's limit, counted exactly: no bucket is involved.",
        "A p95 keeps its promise up to 5 %, a p99 up to 1 %.",
        "Over its share at a level that should hold: that SLO is what binds the knee.", 8, 9,
    ),
)  # fmt: skip
NOTES: Final = (
    Note("measured", f"(({run('step_purpose')}) == 1) {SAME} ({MEASURING})",
         "measured: {{purpose}}", "blue"),
    Note("step ended", f"increase(harness_steps_total{WINDOW}) > 0 {THIS_RUN}",
         "step ended: {{decision}}", "purple"),
    Note("knee found", f"({run('knee_users')}) > 0", "knee found", GREEN),
)  # fmt: skip
DASHBOARD: Final = Dashboard(
    "Knee",
    "How many users this server holds: the search as it closes in.",
    (Row("", FIRST), Row("Against users", AGAINST), Row("The search", SEARCH)),
    VARIABLES, NOTES,
)  # fmt: skip
