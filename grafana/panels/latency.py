"""Latency: how TTFT, ITL, TPOT and e2e are distributed, where TTFT goes, client against server."""

from __future__ import annotations

from typing import Final

from harness.export.metric_definitions import quantile
from harness.metrics.metrics import GAPS, HEADLINES, HISTOGRAMS, LATENCIES
from panels.knee import limits
from panels.model import Dashboard, Panel, Query, Row
from panels.promql import (
    VARIABLES,
    run_buckets,
    run_mean,
    server_buckets,
    server_mean,
)

OTHERS: Final = [key for key in HISTOGRAMS if key in LATENCIES and key not in HEADLINES]
QUANTILES: Final = (0.5, 0.95, 0.99)


def _quantiles(key: str, height: int = 7) -> Panel:
    row = HISTOGRAMS[key]
    name = row.name
    lines = [Query(f"p{q * 100:g}", quantile(q, run_buckets(key))) for q in QUANTILES]
    return Panel(
        f"{name} quantiles",
        "graph",
        "s",
        (*lines, limits(key)),
        f"p50, p95 and p99 of {name} over the window, estimated from histogram buckets.",
        "A quantile is interpolated in its bucket and off by at most a third; failed requests "
        "count as infinitely slow and show as the last bound. The dashed line is an SLO's limit.",
        row.high,
        12,
        height,
    )


def _heatmap(key: str, height: int = 8) -> Panel:
    row = HISTOGRAMS[key]
    name, what = row.name, "Gaps" if key in GAPS else "First tokens" if row.early else "Requests"
    return Panel(
        f"{name} distribution",
        "heatmap",
        "s",
        (Query("{{le}}", run_buckets(key)),),
        f"{what} per second in each bucket of {name}; darker is more.",
        "One band: one kind of request. Two bands: two kinds of requests or steps. A band that "
        "rises with the users is a queue.",
        row.high,
        12,
        height,
    )


def _both(key: str, name: str, less: str, do: str) -> Panel:
    return Panel(
        f"{name}: client against server",
        "graph",
        "s",
        (
            Query("client p95", quantile(0.95, run_buckets(key))),
            Query("server p95", quantile(0.95, server_buckets(key))),
            Query("client mean", run_mean(key)),
            Query("server mean", server_mean(key)),
        ),
        f"{name} as measured by the client, and as reported by vLLM.",
        f"{less} Compare the means: vLLM's buckets are coarse, so its p95 may be far off. vLLM "
        "counts all requests, the client only its own.",
        do,
        8,
        9,
    )


QUEUE, PREFILL, TTFT = (server_mean(key) for key in ("queue", "prefill", "ttft"))
SPLIT: Final = Panel(
    "TTFT split",
    "graph",
    "s",
    (
        Query("queue", QUEUE),
        Query("prefill", PREFILL),
        Query("rest", f"{TTFT} - {QUEUE} - {PREFILL}"),
        Query("TTFT", TTFT, "limit"),
    ),
    "Parts of vLLM's mean TTFT: queue, prefill, and the rest (tokenizing, front end, IPC).",
    "vLLM observes TTFT at the first token, but queue and prefill when a request ends: while the "
    "load changes they come from different requests, and the rest may be negative. Read it at a "
    "steady level.",
    "Queue: more slots (max_num_seqs) or replicas. Prefill: shorter prompts, prefix caching, "
    "--max-num-batched-tokens. Rest: more API servers, a faster CPU.",
    12,
    9,
    stacked=True,
    least=None,
)
PHASES: Final = Panel(
    "Phases of a request",
    "graph",
    "s",
    tuple(Query(key, server_mean(key)) for key in ("queue", "prefill", "decode", "inference")),
    "vLLM's mean time per finished request in queue, prefill and decode; inference is the last two "
    "together.",
    "Decode is the longest: a step per token. Beyond the knee, only the queue grows.",
    "Compare queue with e2e: its share is what another replica would save.",
    12,
    9,
)
DASHBOARD: Final = Dashboard(
    "Latency",
    "How latencies are distributed, where TTFT goes, and whether client and server agree.",
    (
        Row(
            "",
            (
                *map(_quantiles, HEADLINES),
                *map(_heatmap, HEADLINES),
            ),
        ),
        Row("TTFT by part", (SPLIT, PHASES)),
        Row(
            "Client against server",
            (
                _both(
                    "ttft",
                    "TTFT",
                    "The client's includes the network and the connection.",
                    "They differ by more than a round trip: the front end or the client is busy; "
                    "see Client health.",
                ),
                _both(
                    "itl",
                    "ITL",
                    "They agree unless tokens are merged on the way.",
                    "Client p95 above the server's: events are sent late by a busy API server.",
                ),
                _both(
                    "e2e",
                    "e2e",
                    "The client's ends with the last byte.",
                    "They differ while TTFT agrees: streams end late.",
                ),
            ),
        ),
        Row("Other latencies", (*map(_quantiles, OTHERS), *map(_heatmap, OTHERS))),
    ),
    VARIABLES,
)
