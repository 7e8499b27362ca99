"""Overview: for who is on call, production first: latencies, what is down, each replica, cost."""

from __future__ import annotations

from typing import Final

from harness.export.metric_definitions import quantile
from panels.model import TOKENS_PER_S, Dashboard, Panel, Query, Row
from panels.promql import (
    OF_PROCESS,
    OF_SERVERS,
    PRICE,
    WINDOW,
    server,
    server_buckets,
    server_rate,
)

NO_TRAFFIC: Final = "No traffic"
DOWN: Final = ((0.0, "green"), (1.0, "red"))
FULL: Final = ((0.0, "green"), (0.9, "orange"), (0.98, "red"))
QUEUED: Final = ((0.0, "green"), (1.0, "orange"), (50.0, "red"))
EACH: Final = "le, instance"

SEEN: Final = f"count_over_time({server('running')}[1h])"
UP: Final = f"up and on (job, instance) {SEEN}"
GENERATED: Final = f"sum({server_rate('generation_tokens_total')})"
REPLICA_COUNT: Final = f"count(count by (instance) ({server('running')}))"
FINISHED: Final = server_rate("finished")
ABORTED: Final = server_rate("finished", only='finished_reason="abort"')
ANSWERED: Final = f"rate(http_requests_total{{{OF_PROCESS}}}{WINDOW})"
ERRORS: Final = f'rate(http_requests_total{{status=~"5.*", {OF_PROCESS}}}{WINDOW})'


def _p95(key: str) -> str:
    return quantile(0.95, server_buckets(key))


def _stat(  # noqa: PLR0917 - a row of a table
    title: str,
    unit: str,
    expr: str,
    shows: str,
    read: str,
    do: str,
    colours: tuple[tuple[float, str], ...] = (),
) -> Panel:
    queries = (Query(title, expr),)
    return Panel(title, "stat", unit, queries, shows, read, do, 4, 4, colours, empty=NO_TRAFFIC)


FIRST: Final = (
    _stat(
        "p95 TTFT",
        "s",
        _p95("ttft"),
        "Time to first token of production, p95 over all replicas chosen, from vLLM's histogram.",
        "It rises first when requests queue. It is interpolated in a bucket: a step, not a point.",
        "Over its SLO: see Waiting here, then the replicas below; TTFT split is in Latency.",
    ),
    _stat(
        "p95 ITL",
        "s",
        _p95("itl"),
        "Gap between tokens, p95 over all replicas chosen.",
        "It grows with the batch, and with prompts that share a step.",
        "Over its SLO with an empty queue: fewer users per replica, or shorter prompts.",
    ),
    _stat(
        "p95 e2e",
        "s",
        _p95("e2e"),
        "Whole request, p95 over all replicas chosen.",
        "It depends on how long answers are: see Output length in Server.",
        "Up while TTFT and ITL are steady: answers became longer.",
    ),
    _stat(
        "Targets down",
        "none",
        f"count(({UP}) == 0) or vector(0)",
        "Servers that were scraped within the hour and do not answer now.",
        "One that left service discovery is not down but gone: see the replicas below.",
        "Above 0: look at that pod's restarts and log.",
        DOWN,
    ),
    _stat(
        "Waiting",
        "none",
        f"sum({server('waiting')})",
        "Requests in the queues of all engines chosen.",
        "A queue that stays means that capacity is used up: TTFT grows as it does.",
        "Add replicas, or shed load; where one replica's queue alone is long, look at routing.",
        QUEUED,
    ),
    _stat(
        "Fullest KV cache",
        "percentunit",
        f"max({server('kv_usage')})",
        "Share of the KV cache in use, of the fullest engine.",
        "Above 90% requests are preempted and start over.",
        "See Server: preemptions, and lengths of prompts and answers.",
        FULL,
    ),
    Panel(
        "TTFT of production",
        "graph",
        "s",
        tuple(
            Query(f"p{q * 100:g}", quantile(q, server_buckets("ttft"))) for q in (0.5, 0.95, 0.99)
        ),
        "Time to first token, from vLLM's histogram, over all replicas chosen.",
        "p50 steady and p95 up: some requests or replicas only. Both up: a queue for all.",
        "Compare with Running and waiting, beside.",
        12,
        8,
    ),
    Panel(
        "Running and waiting",
        "graph",
        "none",
        (
            Query("running", f"sum({server('running')})"),
            Query("waiting", f"sum({server('waiting')})"),
        ),
        "Requests in all engines chosen.",
        "Running is flat and waiting grows: every slot or all of the KV cache is taken.",
        "The number that a replica holds within its SLO is the knee: `vllm-harness knee` finds it.",
        12,
        8,
    ),
)
REPLICAS: Final = Panel(
    "Replicas",
    "table",
    "none",
    (
        Query("up", f"max by (instance) ({UP})"),
        Query("running", f"sum by (instance) ({server('running')})"),
        Query("waiting", f"sum by (instance) ({server('waiting')})"),
        Query("KV cache", f"max by (instance) ({server('kv_usage')})", unit="percentunit"),
        Query("p95 TTFT", quantile(0.95, server_buckets("ttft", EACH)), unit="s"),
        Query("p95 ITL", quantile(0.95, server_buckets("itl", EACH)), unit="s"),
        Query(
            "output",
            f"sum by (instance) ({server_rate('generation_tokens_total')})",
            unit=TOKENS_PER_S,
        ),
    ),
    "Each server now. A click on its name chooses it for this dashboard; All undoes it.",
    "Rows should be similar. One with a long queue gets too much; one without traffic gets none.",
    "Uneven: look at the router's policy. Up is 0: the server does not answer scrapes.",
    24,
    8,
)
TRAFFIC: Final = (
    Panel(
        "Tokens per second",
        "graph",
        TOKENS_PER_S,
        (
            Query("generated", GENERATED),
            Query("prompt", f"sum({server_rate('prompt_tokens_total')})"),
        ),
        "Tokens generated, and tokens of prompts processed, by all replicas chosen.",
        "Flat while requests wait: the replicas are at their limit.",
        "Compare with the throughput at the knee, in its report.",
        8,
        7,
    ),
    Panel(
        "Requests that failed",
        "graph",
        "percentunit",
        (
            Query("aborted", f"sum({ABORTED}) / sum({FINISHED})"),
            Query("HTTP 5xx", f"sum({ERRORS}) / sum({ANSWERED})"),
        ),
        "Share of the finished requests whose client hung up, and of HTTP answers with status 5xx.",
        "Aborts follow latency: users give up. 5xx is the server's own.",
        "Aborts: see p95 TTFT and timeouts. 5xx: see the server's log.",
        8,
        7,
        most=1.0,
    ),
    Panel(
        "Cost per million output tokens",
        "graph",
        "none",
        (Query("cost", f"1e6 * $price * {REPLICA_COUNT} / (3600 * ({GENERATED} > 0))"),),
        "The price of a replica-hour (above, in any currency) times the replicas, divided by "
        "their output.",
        "It falls as traffic rises; the lowest that meets the SLO is at the knee.",
        "High at night: scale in. `vllm-harness fleet` says how many replicas a load needs.",
        8,
        7,
        decimals=2,
    ),
)
DASHBOARD: Final = Dashboard(
    "Overview",
    "For who is on call: production's latencies, what is down, each replica, and what it costs.",
    (Row("", FIRST), Row("Replicas", (REPLICAS,)), Row("Traffic and cost", TRAFFIC)),
    (*OF_SERVERS, PRICE),
)
