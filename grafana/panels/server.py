"""Server: vLLM's queue, KV cache and engine steps."""

from __future__ import annotations

from typing import Final

from harness.export.metric_definitions import quantile
from panels.model import TOKENS_PER_S, Dashboard, Panel, Query, Row
from panels.overview import FULL, REPLICAS
from panels.promql import (
    SAME,
    VARIABLES,
    WINDOW,
    beside,
    beside_rate,
    length_buckets,
    server,
    server_buckets,
    server_mean,
    server_rate,
)

EACH: Final = "{{instance}} engine {{engine}}"
FIRST: Final = (
    Panel(
        "Running and waiting",
        "graph",
        "none",
        (
            Query("running", f"sum({server('running')})"),
            Query("waiting", f"sum({server('waiting')})"),
            Query("max_num_seqs", f"sum({beside('server_max_num_seqs')})", "limit"),
        ),
        "Requests running, requests waiting, and the slots that the exporter knows of.",
        "Waiting above 0 while running is below max_num_seqs: memory is short, not slots.",
        "Running at max_num_seqs with KV cache free: raise --max-num-seqs. Else: add replicas.",
        8,
        7,
    ),
    Panel(
        "KV cache usage",
        "graph",
        "percentunit",
        (
            Query("mean of engines", f"avg({server('kv_usage')})"),
            Query("fullest engine", f"max({server('kv_usage')})"),
        ),
        "Share of KV cache blocks that requests hold.",
        "Above 90% a long answer may cause a preemption.",
        "Raise --gpu-memory-utilization, use an fp8 KV cache, or lower --max-num-seqs.",
        8,
        7,
        colours=FULL,
        most=1.0,
    ),
    Panel(
        "Preemptions",
        "graph",
        "ops",
        (Query("per second", f"sum({server_rate('preemptions_total')})"),),
        "Requests per second that lost their KV blocks and start over.",
        "Anything above 0 at a steady level is work done twice, and a long gap for its user.",
        "Lower --max-num-seqs or give the KV cache more memory.",
        8,
        7,
    ),
    Panel(
        "Prefix cache hits",
        "graph",
        "percentunit",
        (
            Query(
                "hit rate",
                f"sum({server_rate('prefix_hits_total')}) / "
                f"sum({server_rate('prefix_queries_total')})",
            ),
        ),
        "Share of prompt tokens that were found in the prefix cache.",
        "Near 0 for unique prompts; otherwise, the share of tokens that prompts have in common.",
        "Unexpected hits make a level look better than it is: the report names such levels.",
        8,
        7,
        most=1.0,
    ),
    Panel(
        "Tokens per second",
        "graph",
        TOKENS_PER_S,
        (
            Query("generated", f"sum({server_rate('generation_tokens_total')})"),
            Query("prompt", f"sum({server_rate('prompt_tokens_total')})"),
        ),
        "Tokens that vLLM generated and prompt tokens that it processed, per second.",
        "Generated is flat while running grows: the GPU or its memory bus is the limit.",
        "Compare with the tokens received, in Client health.",
        8,
        7,
    ),
    Panel(
        "Tokens per engine step",
        "graph",
        "none",
        (
            Query("mean", server_mean("step_tokens")),
            Query("p50", quantile(0.5, server_buckets("step_tokens"))),
            Query("p95", quantile(0.95, server_buckets("step_tokens"))),
        ),
        "Tokens in one engine step: one for each decoding request, more where a prompt is in it.",
        "p95 far above the mean: steps with prompts, which delay every stream in them.",
        "p95 at --max-num-batched-tokens: prompts queue for it; raising it lowers TTFT and raises "
        "ITL.",
        8,
        7,
    ),
)
MORE: Final = (
    Panel(
        "Waiting requests by reason",
        "graph",
        "none",
        (
            Query("for a slot or KV blocks", f"sum({server('waiting_capacity')})"),
            Query("for something else", f"sum({server('waiting_deferred')})"),
        ),
        "Requests waiting for capacity, or for an adapter or a KV transfer. Newer vLLM only.",
        "Capacity is the normal queue.",
        "Something else: check LoRA adapters and KV connectors.",
        8,
        8,
        stacked=True,
    ),
    Panel(
        "Running and waiting by engine",
        "graph",
        "none",
        (
            Query(f"{EACH} running", f"sum by (instance, engine) ({server('running')})"),
            Query(f"{EACH} waiting", f"sum by (instance, engine) ({server('waiting')})"),
        ),
        "Requests of each engine: of a server with --data-parallel-size, or of each replica.",
        "Engines far apart: the load is not shared evenly, and the busiest one is the limit.",
        "Look at how requests are spread: the balancer, or --data-parallel-size-local.",
        8,
        8,
    ),
    Panel(
        "KV cache usage by engine",
        "graph",
        "percentunit",
        (Query(EACH, f"max by (instance, engine) ({server('kv_usage')})"),),
        "Share of KV cache blocks that requests hold in each engine.",
        "The fullest engine preempts first.",
        "As for the mean of the engines, above.",
        8,
        8,
        most=1.0,
    ),
    Panel(
        "Finished requests by reason",
        "graph",
        "reqps",
        (Query("{{finished_reason}}", f"sum by (finished_reason) ({server_rate('finished')})"),),
        "Requests that vLLM finished per second, by reason.",
        "`length` and `stop` are normal; `abort` is a client that disconnected.",
        "Aborts: users give up, or a timeout is too short.",
        8,
        8,
        stacked=True,
    ),
    Panel(
        "Tokens per engine step, distribution",
        "heatmap",
        "none",
        (Query("{{le}}", server_buckets("step_tokens")),),
        "Engine steps per second by number of tokens; darker is more.",
        "The lower band is pure decoding, the upper one steps with prompts.",
        "Mostly the upper band: prompts dominate; see prefix caching and chunked prefill.",
        8,
        8,
    ),
    Panel(
        "Free slots and KV cache",
        "graph",
        "percentunit",
        (
            Query(
                "slots free (max_num_seqs)",
                f"sum({beside('server_slots_free')}) / sum({beside('server_max_num_seqs')})",
            ),
            Query(
                "KV tokens free",
                f"sum({beside('server_kv_free_tokens')}) / sum({beside('server_kv_tokens')})",
            ),
        ),
        "Share of the slots (max_num_seqs) and of the KV cache's tokens that are free.",
        "The one that reaches 0 first is the limit.",
        "Slots first: raise --max-num-seqs. KV tokens first: more memory for the KV cache.",
        8,
        8,
        most=1.0,
    ),
    Panel(
        "Server CPU, cores",
        "graph",
        "none",
        (
            Query(
                "API server",
                f"sum(rate(process_cpu_seconds_total{WINDOW}) {SAME} ({server('running')}))",
            ),
            Query("engine cores", f"sum({beside_rate('engine_cpu')})"),
        ),
        "Cores used by the API server process, from /metrics, and by the engine core processes, "
        "from the exporter on their machine.",
        "An API server near 1 core is saturated: tokenizing and sending wait for it. With several "
        "API servers vLLM does not report it.",
        "Raise --api-server-count, or use a faster CPU.",
        8,
        8,
    ),
    Panel(
        "Exporter: age and duration of its scrape",
        "graph",
        "s",
        (
            Query("age", f"max({beside('target_sample_age')})"),
            Query("took", f"max({beside('target_scrape_duration')})"),
        ),
        "Age of the exporter's last scrape of the target, and how long the target took to answer.",
        "Age is normally below 1 s; a scrape of more than 0.1 s means that the front end is busy.",
        "Gaps: the target did not answer (harness_target_up is 0).",
        8,
        8,
    ),
)


def _lengths(what: str, name: str) -> Panel:
    return Panel(
        f"{what} length",
        "graph",
        "none",
        tuple(Query(f"p{q * 100:g}", quantile(q, length_buckets(name))) for q in (0.5, 0.95)),
        f"Tokens in the {name}s of finished requests, estimated from histogram buckets.",
        "Longer ones take more of the KV cache and of each step; a change here explains one of the "
        "latencies.",
        "Compare with the lengths that a run sends: a knee holds for its lengths only.",
        6,
        7,
    )


DRAFTS: Final = f"sum({server_rate('spec_drafts_total')})"
ACCEPTED: Final = f"sum({server_rate('spec_accepted_tokens_total')})"
SPECULATION: Final = (
    Panel(
        "Draft tokens accepted",
        "graph",
        "percentunit",
        (Query("accepted", f"{ACCEPTED} / sum({server_rate('spec_draft_tokens_total')})"),),
        "Share of the tokens proposed by speculative decoding that the model accepted.",
        "Low: most drafts are computed for nothing, which costs throughput under load.",
        "Below about half: fewer draft tokens, or no speculation at high load. Empty without it.",
        6,
        7,
        most=1.0,
    ),
    Panel(
        "Tokens per draft",
        "graph",
        "none",
        (Query("tokens", f"1 + {ACCEPTED} / {DRAFTS}"),),
        "Tokens that a step with a draft gives: the accepted ones and the model's own.",
        "At 1 nothing is accepted; at the number of draft tokens and one, everything is.",
        "Compare with ITL: this is how many tokens come at once.",
        6,
        7,
    ),
    _lengths("Prompt", "prompt"),
    _lengths("Output", "output"),
)
DASHBOARD: Final = Dashboard(
    "Server",
    "vLLM's queue, KV cache and engine steps.",
    (
        Row("", FIRST),
        Row("Replicas", (REPLICAS,)),
        Row("Speculative decoding and lengths", SPECULATION),
        Row("More server metrics", MORE),
    ),
    VARIABLES,
)
