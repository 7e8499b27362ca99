"""Server: what vLLM says of its queue, its memory and its steps."""

from __future__ import annotations

from typing import Final

from harness.export.dashboards.model import Dashboard, Panel, Query, Row
from harness.export.dashboards.promql import (
    SAME,
    VARIABLES,
    beside,
    beside_rate,
    quantile,
    server,
    server_buckets,
    server_mean,
    server_rate,
)

FULL: Final = ((0.0, "green"), (0.9, "orange"), (0.98, "red"))
FIRST: Final = (
    Panel(
        "Running and waiting", "graph", "none",
        (Query("running", f"sum({server('running')})"),
         Query("waiting", f"sum({server('waiting')})"),
         Query("seats", f"sum({beside('server_seats')})", "limit")),
        "Requests in the batch, requests that wait, and the seats there are (max-num-seqs), as far "
        "as the exporter knows them.",
        "Waiting above 0 while running is below the seats: memory is what lacks, not seats.",
        "Running at the seats with KV cache free: --max-num-seqs higher. Else: more "
        "replicas.", 8, 7,
    ),
    Panel(
        "KV cache in use", "graph", "percentunit",
        (Query("mean of engines", f"avg({server('kv_usage')})"),
         Query("fullest engine", f"max({server('kv_usage')})")),
        "Share of KV cache blocks that requests hold.",
        "Above 90 % the next long answer may throw somebody out; see preemptions.",
        "More --gpu-memory-utilization, an fp8 cache, or fewer --max-num-seqs.", 8, 7,
        colours=FULL, most=1.0,
    ),
    Panel(
        "Preemptions", "graph", "ops",
        (Query("per second", f"sum({server_rate('preemptions_total')})"),),
        "Requests that lost their KV blocks per second and start over.",
        "Anything above 0 in a steady level is work done twice, and a long gap for its user.",
        "Lower --max-num-seqs or give the cache more memory.", 8, 7,
    ),
    Panel(
        "Prefix cache hits", "graph", "percentunit",
        (Query("hit rate", f"sum({server_rate('prefix_hits_total')}) / "
               f"sum({server_rate('prefix_queries_total')})"),),
        "Share of prompt tokens that were found in the prefix cache.",
        "Near 0 for unique prompts; what the workload shares, else.",
        "Unexpected hits make a level look better than it is: the run says which step is affected.",
        8, 7, most=1.0,
    ),
    Panel(
        "Tokens per second", "graph", "none",
        (Query("generated", f"sum({server_rate('generation_tokens_total')})"),
         Query("prompt", f"sum({server_rate('prompt_tokens_total')})")),
        "Tokens that vLLM generated and prompt tokens that it processed, per second.",
        "Generated flat while running grows: the GPU or the memory bus is the ceiling.",
        "Compare with tokens that arrived, in Client health.", 8, 7,
    ),
    Panel(
        "Batch tokens", "graph", "none",
        (Query("mean", server_mean("step_tokens")),
         Query("p50", quantile(0.5, server_buckets("step_tokens"))),
         Query("p95", quantile(0.95, server_buckets("step_tokens")))),
        "Tokens in one engine step: one for each request that decodes, more where a prompt is in "
        "it.",
        "p95 far above the mean: steps with prompts, which every stream of that step waits for.",
        "p95 at --max-num-batched-tokens: prompts queue for it; raising it helps TTFT and costs "
        "ITL, "
        "or the other way round: measure.", 8, 7,
    ),
)  # fmt: skip
MORE: Final = (
    Panel(
        "Waiting, by reason", "graph", "none",
        (Query("for a seat or KV blocks", f"sum({server('waiting_capacity')})"),
         Query("for something else", f"sum({server('waiting_deferred')})")),
        "Requests that wait: for capacity, or for an adapter or a KV transfer. Newer vLLM only.",
        "Capacity is the ordinary queue.", "Something else: look at adapters and KV connectors.",
        8, 8, stacked=True,
    ),
    Panel(
        "Requests that ended", "graph", "reqps",
        (Query("{{finished_reason}}", f"sum by (finished_reason) ({server_rate('finished')})"),),
        "Requests that vLLM finished per second, by reason.",
        "`length` and `stop` are well; `abort` is a client that hung up.",
        "Aborts: users give up or a timeout is too short.", 8, 8, stacked=True,
    ),
    Panel(
        "Batch tokens, distribution", "heatmap", "none",
        (Query("{{le}}", server_buckets("step_tokens")),),
        "Engine steps per second by the tokens in them; darker is more.",
        "The low band is pure decoding, the upper one steps with prompts.",
        "Much of the time in the upper band: prompts rule; see prefix cache and chunked prefill.",
        8, 8,
    ),
    Panel(
        "Room left", "graph", "percentunit",
        (Query("seats free", f"sum({beside('server_seats_left')}) / "
               f"sum({beside('server_seats')})"),
         Query("KV tokens free", f"sum({beside('server_kv_free_tokens')}) / "
               f"sum({beside('server_kv_tokens')})")),
        "Share of the seats and of the KV cache's tokens that no request holds, from the exporter.",
        "The one that reaches 0 first is what binds.",
        "Seats first: --max-num-seqs. Tokens first: memory.", 8, 8, most=1.0,
    ),
    Panel(
        "CPU of the server, cores", "graph", "none",
        (Query("API server", f"sum(rate(process_cpu_seconds_total[$window]) {SAME} "
               f"({server('running')}))"),
         Query("engine cores", f"sum({beside_rate('engine_cpu')})")),
        "Cores that the API server's process uses, by its own /metrics, and the engine cores, by "
        "the "
        "exporter on their machine.",
        "An API server near 1 core is full: tokenizing and sending wait for it. With several of "
        "them "
        "vLLM does not say.",
        "--api-server-count higher, or a faster core.", 8, 8,
    ),
    Panel(
        "The exporter's readings", "graph", "s",
        (Query("age", f"max({beside('target_sample_age')})"),
         Query("took", f"max({beside('target_scrape_duration')})")),
        "How old the exporter's last reading of the target is, and how long the target took for "
        "it.",
        "Age is below about 1 s; taking longer than 0.1 s means that the front end is busy.",
        "Gaps: the target did not answer (harness_target_up is 0).", 8, 8,
    ),
)  # fmt: skip
DASHBOARD: Final = Dashboard(
    "Server",
    "What vLLM says of its queue, its memory and its steps.",
    (Row("", FIRST), Row("More of the server", MORE)),
    VARIABLES,
)
